"""API types of Unwind and of the systems it works with, one module per API group. No I/O."""
