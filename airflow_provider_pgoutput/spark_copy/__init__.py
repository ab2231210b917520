"""The PySpark application that copies large tables: capture's reader and casters, on many executors."""
