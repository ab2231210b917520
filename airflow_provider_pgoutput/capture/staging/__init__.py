"""From decoded columns to sealed Parquet files in the staging area."""
