"""PostgreSQL types: what the lake calls them, and their text form cast to Arrow columns."""
