"""Clusters that are deleted: a plan, its steps, and what is said of them."""
