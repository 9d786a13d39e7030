"""Builds the container image: `make image`. Not part of the product."""
