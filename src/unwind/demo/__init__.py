"""The demonstration: a shop on a real cluster, and what happens when that cluster is deleted."""
