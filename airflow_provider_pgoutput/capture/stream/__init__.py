"""Reads the slot through one of two transports, and cuts the stream into a batch after a commit."""
