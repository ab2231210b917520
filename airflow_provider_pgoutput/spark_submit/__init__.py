"""Starts a Spark job with spark-submit, follows it, and reads its result."""
