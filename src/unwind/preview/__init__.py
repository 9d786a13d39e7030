"""Previews what a deletion would do."""
