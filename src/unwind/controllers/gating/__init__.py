"""Cluster API's hooks: what answers them, and whether they are registered."""
