"""What the pipeline costs, measured against PostgreSQL's own client and against a bare Spark MERGE.

Start at ``run.py``; ``docs/explanation/performance.md`` explains the figures. None of this is part of the
wheel.
"""
