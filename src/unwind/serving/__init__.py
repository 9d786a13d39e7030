"""The HTTPS listener, certificates and their rotation, metrics, health, readiness."""
