"""The page inside Airflow: static files that ask Airflow's own API with the user's own rights."""
