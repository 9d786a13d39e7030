"""Explains what blocks the deletion of an object and who must act: pure functions over observed facts."""
