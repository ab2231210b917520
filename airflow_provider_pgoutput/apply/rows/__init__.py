"""From staged changes to committed rows: fold by key, write to a branch of the target."""
