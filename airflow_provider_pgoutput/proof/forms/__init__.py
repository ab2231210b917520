"""How SQL and Arrow hash the values of each type, so that both get the same number."""
