"""Tables, live views, SVG, PNG, DOT, Mermaid."""
