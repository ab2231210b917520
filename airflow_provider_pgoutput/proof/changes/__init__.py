"""Verifications that read only what changed since the last one; start at ``blockwise.py``."""
