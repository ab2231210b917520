"""Which table a target is, and how far it is applied."""
