"""Which lake types Iceberg can turn into which without rewriting a file.

Source: https://iceberg.apache.org/spec/#schema-evolution
"""

from __future__ import annotations

from airflow_provider_pgoutput.batch.lake_types import decimal_type

_WIDENINGS = {("int", "long"), ("float", "double")}


def widens(old: str, new: str) -> bool:
    """Whether Iceberg can turn a column of ``old`` into ``new`` without rewriting a file."""
    if (old, new) in _WIDENINGS:
        return True
    before, after = decimal_type(old), decimal_type(new)
    return bool(before and after and before[1] == after[1] and before[0] < after[0])
