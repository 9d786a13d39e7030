"""Cluster API: lifecycle hooks, the gate before a cluster's deletion, the ExtensionConfig.

The gate's decision is in `teardown.deletion_gate`, because add-ons use it as well; here is its HTTP side
(`hook_handlers`).
"""
