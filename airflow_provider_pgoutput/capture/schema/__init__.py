"""What became of a table's columns: which is which, what was renamed, added, dropped, retyped."""
