"""What happened to a table's columns: which is which, what was renamed, added, dropped or retyped."""
