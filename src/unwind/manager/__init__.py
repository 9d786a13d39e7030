"""`unwind run`: wiring, health, feature gates."""
