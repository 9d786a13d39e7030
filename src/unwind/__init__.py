"""Unwind takes Kubernetes clusters, add-ons and resources apart."""
