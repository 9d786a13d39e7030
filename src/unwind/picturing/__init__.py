"""Plans and teardowns as pictures: SVG, DOT, Mermaid, and columns in a terminal (pure)."""
