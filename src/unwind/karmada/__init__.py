"""Karmada's member Clusters and Works: join, unjoin, apply."""
