"""Why something is still there, and who must act: pure functions over facts."""
