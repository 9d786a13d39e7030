"""Member clusters: their credentials, clients, identity and reachability."""
