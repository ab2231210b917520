"""The only place that talks to Iceberg's Java classes and writes SQL text for Spark."""
