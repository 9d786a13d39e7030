"""`unwind install`: the manifests and rights that each package declares, conflicts, apply, remove."""
