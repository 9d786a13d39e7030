"""Puts add-ons on a member, manifests and charts, and writes down in the inventory what it put there."""
