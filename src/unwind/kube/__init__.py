"""API machinery: client, discovery, caches, informers, watches, work queue, shards, events."""
