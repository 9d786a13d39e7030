"""What a cluster waits for at Cluster API's lifecycle hooks (pure). Its deletion has a gate of its own."""
