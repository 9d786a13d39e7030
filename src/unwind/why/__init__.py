"""Why something is still there: rules and reader."""
