"""The commands ``airflow pgoutput ...``."""
