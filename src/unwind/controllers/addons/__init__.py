"""Profiles, and what comes of them on clusters: deployed, kept in step, withdrawn."""
