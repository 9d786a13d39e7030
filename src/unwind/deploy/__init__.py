"""Applies manifests and charts to a member and records them in the inventory. Used by add-ons and Works."""
