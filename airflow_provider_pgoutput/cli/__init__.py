"""The commands ``pgoutput ...``, a program of its own and a part of Airflow's command line."""
