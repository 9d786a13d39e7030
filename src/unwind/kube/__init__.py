"""API machinery: what it takes to talk to an API server."""
