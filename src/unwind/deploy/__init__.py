"""Manifests and charts applied to a member, and recorded in the inventory. Used by add-ons and Works."""
