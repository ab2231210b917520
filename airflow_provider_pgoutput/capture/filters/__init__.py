"""Filters: the conditions that rows must pass, at the source as SQL and in the stream on whole columns."""
