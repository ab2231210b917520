"""Airflow task groups of the provider."""
