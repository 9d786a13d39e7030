"""Companions: deployers that people already run, whose inventories Unwind removes in order."""
