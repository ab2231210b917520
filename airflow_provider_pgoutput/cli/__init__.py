"""``airflow pgoutput ...``: what Airflow's command line gets from this provider."""
