"""The helm program, charts, and Helm's release Secrets."""
