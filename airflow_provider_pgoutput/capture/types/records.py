r"""The caster of composite values as structs: one scan over the literals of a whole column.

A literal is ``(1,"a ""quoted"" \\ text",)``: every attribute in order, and nothing for NULL. Inside of
quotes, a quote and a backslash are doubled. The two quotes of such a pair open and close nothing. So a mark
is inside of quotes if an odd number of quotes is before it, as in ``literals.py``. The casters of the
attributes' types cast the attributes, so composites and arrays can nest.

If a value has another number of attributes than the type, it was written before the type was altered. Then it
is not known which attribute is which, and the value is rejected. A value with an attribute that does not fit
is rejected, too.

Source: https://www.postgresql.org/docs/current/rowtypes.html#ROWTYPES-IO-SYNTAX
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from airflow_provider_pgoutput.capture.types.arrow_bytes import (
    ByteRuns,
    Caster,
    CastResult,
    MalformedText,
    accepted,
    at_rows_of,
    cut,
    valid_rows,
    without,
)
from airflow_provider_pgoutput.capture.types.literals import Marks, find_marks, without_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_OPENING, _CLOSING, _QUOTE = ord("("), ord(")"), ord('"')


def record_caster(target: pa.DataType, casters: Sequence[Caster]) -> Caster:
    """A caster of composite literals.

    :param casters: those of the attributes in order, at least one.
    """

    def cast(raw: pa.Array) -> CastResult:
        dense = raw.drop_null() if raw.null_count else raw
        if len(dense) == 0:
            return accepted(pa.nulls(len(raw), target))
        runs = ByteRuns.of(dense)
        marks = find_marks(runs.data, b"(),")
        if len(rejected := _of_another_shape(runs, marks, len(casters))):
            return _without_rejected(raw, rejected)
        results = [
            caster(attribute)
            for caster, attribute in zip(casters, _attributes(runs, marks), strict=True)
        ]
        rejected = np.unique(np.concatenate([each.rejected for each in results]))
        if len(rejected):
            return _without_rejected(raw, rejected)
        values = pa.StructArray.from_arrays([each.values for each in results], fields=list(target))
        return accepted(at_rows_of(raw, values))

    def _without_rejected(raw: pa.Array, dense_rows: NDArray[np.int64]) -> CastResult:
        rejected = valid_rows(raw)[dense_rows]
        rest = cast(without(raw, rejected))
        return CastResult(rest.values, np.union1d(rejected, rest.rejected))

    return cast


def _of_another_shape(runs: ByteRuns, marks: Marks, attributes: int) -> NDArray[np.int64]:
    """Rows with another number of attributes.

    :raises MalformedText: a row does not begin and end like a literal.
    """
    opens, closes = marks.kinds == _OPENING, marks.kinds == _CLOSING
    if not (
        np.array_equal(marks.structure[opens], runs.starts)
        and np.array_equal(marks.structure[closes], runs.ends - 1)
        and (runs.ends - runs.starts >= 2).all()
    ):
        raise MalformedText
    found = np.diff(np.flatnonzero(opens), append=len(opens)) - 1
    return np.flatnonzero(found != attributes)


def _attributes(runs: ByteRuns, marks: Marks) -> list[pa.Array]:
    """The text of each attribute of all rows. All rows have the same number of attributes.

    :raises MalformedText: quotes stand elsewhere than around attributes.
    """
    edges = marks.structure.reshape(len(runs.starts), -1)
    starts, ends = edges[:, :-1] + 1, edges[:, 1:]
    is_null = starts == ends
    quoted = (runs.data[starts] == _QUOTE) & ~is_null
    inner = np.setdiff1d(
        marks.quotes, np.concatenate([starts[quoted], ends[quoted] - 1]), assume_unique=True
    )
    if (
        (ends - starts < 2)[quoted].any()
        or (runs.data[ends[quoted] - 1] != _QUOTE).any()
        or len(inner) % 2
        or (inner[0::2] + 1 != inner[1::2]).any()
    ):
        raise MalformedText
    starts, ends = starts + quoted, ends - quoted
    dropped = np.union1d(marks.escapes, inner[0::2])
    data, starts, ends = without_bytes(runs.data, starts, ends, dropped)
    return [
        cut(data, starts[:, position], ends[:, position], is_null[:, position])
        for position in range(starts.shape[1])
    ]
