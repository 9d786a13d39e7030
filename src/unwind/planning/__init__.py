"""From dependencies to waves, and to what may go now. Pure."""
