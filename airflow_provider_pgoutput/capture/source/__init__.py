"""The only place that talks to PostgreSQL: session, catalog, slot, stream, copy."""
