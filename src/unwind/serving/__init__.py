"""The manager process: HTTPS listener, certificates and their rotation, metrics, health and readiness."""
