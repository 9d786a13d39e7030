"""Computes teardown plans from dependencies: waves, cycles, ready steps, blast radius. Pure."""
