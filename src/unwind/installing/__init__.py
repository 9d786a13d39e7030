"""Install and uninstall Unwind in a cluster: manifests, RBAC rules and admission policies."""
