"""Links that operators show in Airflow's user interface."""
