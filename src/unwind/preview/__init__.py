"""What a deletion would do, for people."""
