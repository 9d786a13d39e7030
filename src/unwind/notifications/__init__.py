"""Notifications: sinks outside the cluster are told what happens to the clusters of a TeardownPolicy."""
