"""Drain: deletes objects on a cluster that stand for something outside it, before the cluster goes."""
