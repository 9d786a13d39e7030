"""The objects, as typed values: a module for each API group. Nothing here talks to a server."""
