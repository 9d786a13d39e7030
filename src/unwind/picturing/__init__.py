"""Render plans and teardowns: tables, terminal views, SVG, PNG, DOT and Mermaid."""
