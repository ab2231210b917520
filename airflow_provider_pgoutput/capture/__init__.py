"""From slot to sealed batch to advanced slot. Knows nothing of Airflow and nothing of Spark."""
