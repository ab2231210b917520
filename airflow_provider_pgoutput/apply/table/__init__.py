"""One target and its position: which table it is, and how far it is applied."""
