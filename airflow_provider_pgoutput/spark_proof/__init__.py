"""The Spark job that hashes the files of large tables; see ``proof/files/file_hash.py``."""
