"""For those who test against a real control plane."""
