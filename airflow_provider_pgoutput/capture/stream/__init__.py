"""Reads the slot: two transports behind one seam, cut at a commit into a batch."""
