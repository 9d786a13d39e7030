"""Sveltos profiles and ClusterSummaries."""
