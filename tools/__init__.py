"""Generators of pages and modules, for those who work on the project. Not in the wheel."""
