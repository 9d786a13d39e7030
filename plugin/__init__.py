"""Packages the kubectl plugin. Not part of the product."""
