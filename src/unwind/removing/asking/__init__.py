"""Implements `unwind why`: reads the facts that `unwind.diagnosing` needs to explain what blocks a deletion."""
