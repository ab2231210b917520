"""The digest of rows: how many there are, and the sum of their hashes.

Equal rows have equal digests, whichever side computes them.

It is a sum and no XOR, because two equal rows would cancel each other in an XOR. The order of the rows does
not matter. Digests of parts add up to the digest of the whole.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from psycopg import sql

from airflow_provider_pgoutput.batch.table_version import Column
from airflow_provider_pgoutput.capture.types.type_info import types_from_body, types_to_body
from airflow_provider_pgoutput.proof.forms.choice import form_of
from airflow_provider_pgoutput.proof.forms.functions import is_null
from airflow_provider_pgoutput.proof.forms.masked import masked_form
from airflow_provider_pgoutput.proof.forms.scalar import HashTerms

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from airflow_provider_pgoutput.capture.types.type_info import TypeInfo
    from airflow_provider_pgoutput.proof.forms.scalar import Form
    from airflow_provider_pgoutput.proof.server_hashes import Hashes

_MODULUS: Final = 2**64
#: Rows that are hashed together: their hashes stay in the processor's cache.
ROWS_AT_ONCE: Final = 32_768
#: A function of PostgreSQL takes at most so many arguments.
_MOST_ARGUMENTS: Final = 100
#: Columns whose hashes are chained. More columns make several chains, because the depth of an expression is
#: limited at the server and in psycopg. The hash of a later chain becomes a text before it is hashed again:
#: the server's hash of a ``bigint`` folds its halves, and different hashes could become equal.
_CHAINED: Final = 100


@dataclass(frozen=True, slots=True)
class Digest:
    """How many rows there are, and the sum of their hashes."""

    rows: int = 0
    #: The sum of the hashes, modulo 2^64.
    total: int = 0

    def __add__(self, other: Digest) -> Digest:
        return Digest(self.rows + other.rows, (self.total + other.total) % _MODULUS)

    def __sub__(self, other: Digest) -> Digest:
        return Digest(self.rows - other.rows, (self.total - other.total) % _MODULUS)

    def __str__(self) -> str:
        return f"{self.rows} rows, {self.total:016x}"


@dataclass(frozen=True)
class RowHash:
    """The hash of a row on both sides.

    :param names: the columns' names at the source.
    :param forms: how each column is hashed, in the order of ``names``.
    :param columns: see ``of``, as for ``types``.
    """

    names: tuple[str, ...]
    forms: tuple[Form, ...]
    terms: HashTerms
    columns: tuple[Column, ...]
    types: Mapping[int, TypeInfo]

    @classmethod
    def of(
        cls,
        columns: Iterable[Column],
        types: Mapping[int, TypeInfo],
        salt: int,
        *,
        recodes: bool = False,
        is_md5: bool = False,
        hashes_timestamptz: bool = False,
    ) -> RowHash:
        """The hash of rows with these columns.

        :param types: users' types by OID, with their attributes.
        :param recodes: see ``HashTerms``, as for ``is_md5`` and ``hashes_timestamptz``.
        :param salt: any number of a ``bigint``. Digests with different salts cannot be compared.
        """
        known, terms = tuple(columns), HashTerms(salt, recodes, is_md5, hashes_timestamptz)
        forms = (
            form_of(each.lake_type, each.type_oid, each.type_modifier, types, terms)
            if each.mask is None
            else masked_form(each.mask, each.type_oid, types, terms)
            for each in known
        )
        return cls(tuple(each.name for each in known), tuple(forms), terms, known, types)

    def to_body(self) -> dict[str, Any]:
        """The form in JSON. It has no secret: a mask is named without it."""
        return {
            "columns": [dataclasses.asdict(each) for each in self.columns],
            "types": types_to_body(self.types),
            "salt": self.terms.salt,
            "recodes": self.terms.recodes,
            "is_md5": self.terms.is_md5,
        }

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> RowHash:
        """The hash that ``to_body`` described."""
        return cls.of(
            [Column(**each) for each in body["columns"]],
            types_from_body(body["types"]),
            body["salt"],
            recodes=body["recodes"],
            is_md5=body["is_md5"],
        )

    def expression(self, table: str) -> sql.Composable:
        """The SQL of the hash of a row.

        :param table: the table's alias in the query.
        """
        values = [sql.Identifier(table, name) for name in self.names]
        functions = self.terms.functions
        seed: sql.Composable = sql.SQL(functions.first(self.terms.salt))
        for positions in self._counted():
            counted = sql.SQL(", ").join(values[position] for position in positions)
            nulls = sql.SQL("pg_catalog.num_nulls({})").format(counted)
            seed = sql.SQL(functions.int4).format(value=nulls, seed=seed)
        chains = []
        for begin in range(0, len(values), _CHAINED):
            end, chain = begin + _CHAINED, seed
            for value, form in zip(values[begin:end], self.forms[begin:end], strict=True):
                chain = _flat(form.chained(value, chain, 0))
            chains.append(chain)
        found = chains[0]
        for later in chains[1:]:
            ended = sql.SQL(functions.finished).format(seed=later)
            text = sql.SQL("({})::pg_catalog.text").format(ended)
            found = _flat(sql.SQL(functions.text).format(value=text, seed=found))
        return sql.SQL(functions.finished).format(seed=found)

    def of_rows(self, columns: Sequence[pa.Array]) -> Hashes:
        """The hashes of rows of the lake.

        :param columns: in the order of ``names``, and equally long.
        """
        functions = self.terms.functions
        seeds = functions.firsts(self.terms.salt, len(columns[0]))
        for positions in self._counted():
            nulls = np.broadcast_to(np.int32(0), len(columns[0]))
            for position in positions:
                if columns[position].null_count:
                    nulls = nulls + is_null(columns[position])
            seeds = functions.hash_int4(nulls, seeds)
        chains = []
        for begin in range(0, len(columns), _CHAINED):
            end, chain = begin + _CHAINED, seeds
            for values, form in zip(columns[begin:end], self.forms[begin:end], strict=True):
                chain = form.hashed(values, chain)
            chains.append(chain)
        found = chains[0]
        for later in chains[1:]:
            texts = pa.array(functions.finish(later).view(np.int64)).cast(pa.string())
            found = functions.hash_texts(texts, found, b"")
        return functions.finish(found)

    def digest(self, rows: pa.RecordBatch) -> Digest:
        """The digest of rows of the lake.

        :param rows: their columns are in the order of ``names``; more may follow.
        """
        digest = Digest()
        for begin in range(0, rows.num_rows, ROWS_AT_ONCE):
            part = rows.slice(begin, ROWS_AT_ONCE)
            hashes = self.of_rows(part.columns[: len(self.forms)])
            digest += Digest(part.num_rows, int(hashes.sum(dtype=np.uint64)))
        return digest

    def _counted(self) -> list[list[int]]:
        """The positions of columns whose NULLs are counted, in groups.

        NULL is hashed as a value that stands for it. In some types that can be a value of a row, too. So the
        number of NULLs in columns of such types is hashed as well.
        """
        positions = [position for position, form in enumerate(self.forms) if form.may_hold_sentinel]
        return [
            positions[begin : begin + _MOST_ARGUMENTS]
            for begin in range(0, len(positions), _MOST_ARGUMENTS)
        ]


def _flat(expression: sql.Composable) -> sql.Composable:
    """The same SQL as one text. psycopg joins nested pieces by recursion, which has a limit."""
    return sql.SQL(expression.as_string())


def aggregates(row_hash: sql.Composable) -> sql.Composable:
    """The SQL of a digest; ``digest_of`` reads its two columns."""
    return sql.SQL("pg_catalog.count(*), COALESCE(pg_catalog.sum({}), 0)::pg_catalog.text").format(
        row_hash
    )


def digest_of(rows: int, total: str) -> Digest:
    """The digest that a query with ``aggregates`` gave."""
    return Digest(rows, int(total) % _MODULUS)
