"""Objects that stand for a resource outside the cluster, and the deletion of that resource."""
