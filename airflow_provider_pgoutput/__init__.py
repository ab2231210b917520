"""Airflow provider for PostgreSQL logical replication (pgoutput) into Apache Iceberg.

This file imports nothing: Spark ships the package with ``--py-files`` and parses it without Airflow.
"""

__version__ = "0.1.0"
