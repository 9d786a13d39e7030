"""May this DELETE pass? The kinds that can be protected, the rules (pure), and their form as admission policies."""
