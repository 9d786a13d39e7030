"""A real control plane on one machine: its binaries, its processes, and what plays the rest of a cluster."""
