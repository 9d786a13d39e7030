"""Local control planes: binaries, processes, and stand-ins for nodes, cloud and providers."""
