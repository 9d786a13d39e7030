"""Objects that stand for something outside the cluster."""
