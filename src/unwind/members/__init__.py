"""Member clusters: their identity, credentials and connections."""
