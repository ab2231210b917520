"""Random programs against whole pipelines: ``make chaos SEED=1 RUNS=20``."""
