"""What `unwind install` puts into a cluster, and how it is taken back."""
