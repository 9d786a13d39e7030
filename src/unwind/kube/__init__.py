"""Kubernetes API machinery: client, informers, work queue, watches, Leases and shards."""
