"""Links that Airflow shows on a task."""
