"""A pipeline under load for half an hour: ``make soak MINUTES=30 SEED=1``."""
