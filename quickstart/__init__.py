"""The embedded default: PostgreSQL, Java, Spark and an Iceberg catalog on one machine."""
