"""Real control planes on one machine."""
