"""Dates and timestamps as ADBC returns them: days or microseconds since 1970, of any size.

ADBC moves PostgreSQL's count from 2000 to 1970 without a look at the value. So the infinities, which are the
greatest and the least number, wrap around. The same step back gives them again, bit by bit. What the lake
cannot hold is rejected by the same rules as in text and binary form.

Source: https://www.postgresql.org/docs/current/datatype-datetime.html
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_pgoutput.capture.types.arrow_bytes import CastResult, accepted
from airflow_provider_pgoutput.capture.types.dates import DAY_US, EPOCH_DAYS, LAKE_DAYS
from airflow_provider_pgoutput.capture.types.registry import row_of
from airflow_provider_pgoutput.capture.types.type_info import BUILTIN_TYPES

if TYPE_CHECKING:
    from airflow_provider_pgoutput.capture.types.cast import ColumnCaster


def moment_caster(text_caster: ColumnCaster) -> ColumnCaster:
    """The caster of a column of ``date``, ``timestamp`` or ``timestamptz`` as ADBC fetched it.

    :param text_caster: the column's caster of values in text form.
    """
    target = text_caster.arrow_type
    unit = 1 if pa.types.is_date32(target) else DAY_US
    numbers = pa.int32() if pa.types.is_date32(target) else pa.int64()
    first, end = (pa.scalar((days + EPOCH_DAYS) * unit, numbers) for days in LAKE_DAYS)
    form = row_of(BUILTIN_TYPES[text_caster.column.type_oid]).binary
    assert form is not None, "dates and timestamps have a binary form"

    def cast(fetched: pa.Array) -> CastResult:
        assert fetched.type == target, "ADBC's type of it is the lake's"
        found = fetched.view(numbers)
        extremes = pc.min_max(found)
        if pc.and_(
            pc.greater_equal(extremes["min"], first), pc.less(extremes["max"], end)
        ).as_py() in {True, None}:
            return accepted(fetched)
        outside = pc.or_(pc.less(found, first), pc.greater_equal(found, end)).fill_null(False)
        rejected = np.flatnonzero(outside.to_numpy(zero_copy_only=False))
        return CastResult(pc.if_else(outside, pa.scalar(None, target), fetched), rejected)

    def texts(fetched: pa.Array) -> pa.Array:
        counted = fetched.view(numbers).to_numpy() - numbers.to_pandas_dtype()(EPOCH_DAYS * unit)
        wire = np.ascontiguousarray(counted.astype(counted.dtype.newbyteorder(">")))
        width = pa.binary(wire.dtype.itemsize)
        raw = pa.Array.from_buffers(width, len(wire), [None, pa.py_buffer(wire)])
        return form.texts(raw.cast(pa.binary()))

    return dataclasses.replace(text_caster, _cast=cast, _texts=texts)
