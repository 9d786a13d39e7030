"""One thin reconciler a kind: read from caches, ask a rule, carry out, write status."""
