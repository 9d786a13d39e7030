"""Typed kinds by API group, and every label, annotation, condition and reason. No I/O."""
