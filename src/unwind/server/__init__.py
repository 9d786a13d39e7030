"""The HTTPS listener: routes, TLS, certificates, and how the API server calls it."""
