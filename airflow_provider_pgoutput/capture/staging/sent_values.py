"""Casts the values of a column that the stream sent, each in the form in which it came.

With the option ``binary`` most values come in binary form. Values of a type without a send function come as
text. Content that was prepared in an earlier batch comes in the form of that batch. The caster of the binary
form is made when the first such value comes, because not every type has one.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from airflow_provider_pgoutput.capture.types.cast import CastResult, binary_caster, column_caster

if TYPE_CHECKING:
    from airflow_provider_pgoutput.batch.table_version import Column
    from airflow_provider_pgoutput.capture.pgoutput.blocks import Forms
    from airflow_provider_pgoutput.capture.types.cast import ColumnCaster, ValuePolicy


class MakeCaster(Protocol):
    """Chooses the caster of a column, for values in one form."""

    def __call__(
        self, column: Column, policy: ValuePolicy, *, table: str | None = None
    ) -> ColumnCaster:
        """See ``types/cast.py``."""
        ...


_of_builtin_types: MakeCaster = functools.partial(binary_caster, types={})


@dataclass(frozen=True, slots=True)
class Casters:
    """The functions that choose the casters of a batch."""

    #: For copied values, in the form in which each one is fetched.
    copied: MakeCaster = column_caster
    #: For changed values that come as text.
    text: MakeCaster = column_caster
    #: For changed values that come in binary form.
    binary: MakeCaster = _of_builtin_types


class SentCaster:
    """The casters of one column of one table, for both forms.

    :param table: ``schema.table``, for errors.
    """

    def __init__(self, column: Column, policy: ValuePolicy, table: str, choose: Casters) -> None:
        self._text = choose.text(column, policy, table=table)
        self._make_binary = functools.partial(choose.binary, column, policy, table=table)

    @property
    def arrow_type(self) -> pa.DataType:
        """The type of ``CastResult.values``."""
        return self._text.arrow_type

    @functools.cached_property
    def _binary(self) -> ColumnCaster:
        return self._make_binary()

    def cast(self, raw: pa.Array, forms: Forms) -> CastResult:
        """Cast a column; see ``ColumnCaster.cast``.

        :raises NoBinaryForm: a value is in the binary form of a type that is only read as text.
        """
        if isinstance(forms, bool):
            return (self._binary if forms else self._text).cast(raw)
        text, binary = self._text.cast(_where(raw, ~forms)), self._binary.cast(_where(raw, forms))
        rejected = np.union1d(text.rejected, binary.rejected)
        return CastResult(_merged(text.values, binary.values, forms), rejected)

    def texts(self, raw: pa.Array, forms: Forms) -> pa.Array:
        """The text that PostgreSQL prints for the values; see ``ColumnCaster.texts``."""
        if isinstance(forms, bool):
            return (self._binary if forms else self._text).texts(raw)
        binary = self._binary.texts(_where(raw, forms))
        return _merged(self._text.texts(raw), binary, forms)


def _where(raw: pa.Array, chosen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> pa.Array:
    """The chosen values; null for the others."""
    return raw.take(pa.array(np.arange(len(raw)), mask=~chosen))


def _merged(
    text: pa.Array, binary: pa.Array, forms: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> pa.Array:
    """For each row the value of the form in which it came."""
    rows = np.arange(len(forms)) + np.where(forms, len(forms), 0)
    return pa.concat_arrays([text, binary]).take(pa.array(rows))
