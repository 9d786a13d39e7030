"""Deletion protection: what is asked before something is deleted, and what is known to answer it."""
