"""Member clusters of Karmada's kind: whether they answer, the Works on them, and their way out."""
