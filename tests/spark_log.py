"""Finds what Spark itself wrote in the log of a task."""

from __future__ import annotations

import re

#: By Spark's own profile, ``26/11/26 19:37:40 WARN NativeCodeLoader: ...``, and by ours. The lines of our job
#: have no class.
_LINE = re.compile(r"\b\d\d[/-]\d\d[/-]\d\d \d\d:\d\d:\d\d(?:,\d{3})? (?:INFO|WARN) \w+: .*")


def spark_lines(log: str) -> list[str]:
    """The lines of Spark, Iceberg and Hadoop below the level of an error."""
    return _LINE.findall(log)
