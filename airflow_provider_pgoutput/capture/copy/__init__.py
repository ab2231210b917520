"""Copies whole tables from a snapshot: planned, read in ranges of blocks, each table sealed by itself."""
