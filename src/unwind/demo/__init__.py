"""`unwind demo`: delete a cluster with add-ons on a local control plane."""
