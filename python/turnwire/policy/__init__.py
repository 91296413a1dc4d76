"""Who may, and how much: keys, origins, limits."""
