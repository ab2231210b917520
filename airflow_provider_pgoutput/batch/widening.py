"""Which lake types Iceberg can turn into which without rewriting a file.

Source: https://iceberg.apache.org/spec/#schema-evolution
"""

from __future__ import annotations

from airflow_provider_pgoutput.batch.lake_types import decimal_type, list_element, struct_fields

_WIDENINGS = {("int", "long"), ("float", "double")}


def widens(old: str, new: str) -> bool:
    """Whether Iceberg can turn a column of ``old`` into ``new`` without rewriting a file."""
    if (old, new) in _WIDENINGS:
        return True
    before, after = decimal_type(old), decimal_type(new)
    if before and after:
        return before[1] == after[1] and before[0] < after[0]
    return old != new and _grows(old, new)


def loses_fields(old: str, new: str) -> bool:
    """Whether ``new`` is ``old`` without the last fields of its structs: no row is found by what is left."""
    return old != new and _grows(new, old)


def _grows(old: str, new: str) -> bool:
    """Whether ``new`` is ``old``, or ``old`` with more fields at the end of its structs.

    Fields that come while others go may be these under another name, whose values they would lose.
    """
    if old == new:
        return True
    if (before := list_element(old)) and (after := list_element(new)):
        return _grows(before, after)
    fields, wanted = struct_fields(old) or (), struct_fields(new) or ()
    return (
        bool(fields)
        and all(
            name == as_name and _grows(kind, as_kind)
            for (name, kind), (as_name, as_kind) in zip(fields, wanted, strict=False)
        )
        and len(fields) <= len(wanted)
    )
