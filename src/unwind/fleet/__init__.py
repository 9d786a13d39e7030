"""Members: where their credentials are, their clients, whether they answer, who they are."""
