"""Copies whole tables from a snapshot: planned, read in ranges, sealed each on its own."""
