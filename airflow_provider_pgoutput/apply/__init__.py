"""The PySpark application: a sealed batch into Iceberg tables. No Airflow, no psycopg, no numpy."""
