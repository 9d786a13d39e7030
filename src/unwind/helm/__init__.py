"""The helm program, charts, and the Secrets in which Helm keeps its releases."""
