"""Cluster API: lifecycle hooks, the gate before a cluster's deletion, the ExtensionConfig."""
