"""Erasure of rows: what is asked for, and the staged files. ``apply/erase.py`` does the lake."""
