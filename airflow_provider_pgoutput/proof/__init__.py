"""Proves that a table of the lake equals its source."""
