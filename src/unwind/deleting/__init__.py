"""The deleter chain: how one thing is deleted."""
