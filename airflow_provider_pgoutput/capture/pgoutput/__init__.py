"""The pgoutput protocol without any I/O: bytes in, messages and columns out. It asks no catalog."""
