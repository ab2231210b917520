"""The forms of lists, maps and structs. A list's form hashes each element by the form of its elements.

A form takes a seed and gives the seed of the next column. In SQL it mentions the seed once: the seed is the
expression of all columns before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from airflow_provider_pgoutput.proof.forms.scalar import filled

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from airflow_provider_pgoutput.proof.forms.functions import HashFunctions, Seeds
    from airflow_provider_pgoutput.proof.forms.scalar import Form, Sql
    from airflow_provider_pgoutput.proof.server_hashes import Hashes


@dataclass(frozen=True)
class ListForm:
    """A list: three numbers are hashed, see ``_folded_hash``.

    The seed of an element is the hash of its position, from 1.
    """

    element: Form
    #: SQL that makes an array of a value, with ``{}`` for the value.
    array: str
    #: Whether NULL is hashed like an empty list. pyiceberg 0.12 reads an empty list where a list of structs
    #: is NULL.
    null_is_empty: bool
    functions: HashFunctions
    #: Whether the type has arrays of several dimensions.
    has_dimensions: bool = True
    may_hold_sentinel: bool = False

    def fits(self, value: Sql, depth: int) -> Sql | None:
        """See ``Form``."""
        if not self.has_dimensions:
            return None
        value = filled(self.array, value)
        flat = filled(
            "(COALESCE(pg_catalog.array_ndims({0}), 1) = 1"
            " AND COALESCE(pg_catalog.array_lower({0}, 1), 1) = 1)",
            value,
        )
        name = sql.Identifier(f"g{depth}")
        element = self.element.fits(sql.SQL("{}.v").format(name), depth + 1)
        if element is None:
            return flat
        return sql.SQL(
            "({flat} AND NOT EXISTS (SELECT FROM (SELECT pg_catalog.unnest({value}) AS v) AS {name}"
            " WHERE pg_catalog.num_nulls({name}.v) = 0 AND NOT {element}))"
        ).format(flat=flat, value=value, name=name, element=element)

    def chained(self, value: Sql, seed: Sql, depth: int) -> Sql:
        """See ``Form``."""
        array, elements = filled(self.array, value), sql.Identifier(f"e{depth}")
        held = _held(self, value, depth)
        held_array = sql.SQL("CASE WHEN {} THEN {} END").format(held, array)
        element_seed = sql.SQL(self.functions.int4).format(
            value=sql.SQL("{}.o").format(elements), seed=sql.SQL(self.functions.first(0))
        )
        hashes = sql.SQL(self.functions.finished).format(
            seed=self.element.chained(sql.SQL("{}.v").format(elements), element_seed, depth + 1)
        )
        # unnest() stands in the select list: in FROM it would make columns of a composite's attributes.
        return sql.SQL(
            "(SELECT {hash} FROM (SELECT COALESCE(pg_catalog.bit_xor({hashes}), 0) AS x,"
            " pg_catalog.count({elements}.v)::pg_catalog.int4 AS p,"
            " pg_catalog.count(*)::pg_catalog.int4 AS n"
            " FROM (SELECT pg_catalog.unnest({array}) AS v,"
            " pg_catalog.generate_series(1, pg_catalog.cardinality({array})) AS o) AS {elements})"
            " AS {folded})"
        ).format(
            hash=_folded_hash(
                self.functions, held, seed, depth, null=0 if self.null_is_empty else -1
            ),
            hashes=hashes,
            elements=elements,
            array=held_array,
            folded=sql.Identifier(f"f{depth}"),
        )

    def hashed(self, values: pa.Array, seeds: Seeds) -> Seeds:
        """See ``Form``."""
        counts = pc.list_value_length(values).cast(pa.int64())
        lengths = counts.fill_null(0).to_numpy()
        elements = values.flatten()
        numbers = np.arange(len(elements)) - np.repeat(np.cumsum(lengths) - lengths, lengths) + 1
        element_seeds = self.functions.hash_int4(
            numbers.astype(np.int32), self.functions.firsts(0, len(elements))
        )
        hashes = self.functions.finish(self.element.hashed(elements, element_seeds))
        null = 0 if self.null_is_empty else -1
        numbers = counts.fill_null(null).to_numpy()
        return _folded(self.functions, hashes, elements, numbers, lengths, seeds)


@dataclass(frozen=True)
class MapForm:
    """A map of texts, hashed as a list of its values.

    The pairs of a map have no order. So the seed of a value is the hash of its key, and not of its position.
    """

    #: Schema of the extension hstore.
    schema: str
    #: How a key and a value are hashed.
    text: Form
    functions: HashFunctions
    may_hold_sentinel: bool = False

    def fits(self, value: Sql, depth: int) -> Sql | None:
        """See ``Form``."""
        return None

    def chained(self, value: Sql, seed: Sql, depth: int) -> Sql:
        """See ``Form``."""
        pairs = sql.Identifier(f"e{depth}")
        first = sql.SQL(self.functions.first(0))
        key = self.text.chained(sql.SQL("{}.k").format(pairs), first, depth + 1)
        hashes = sql.SQL(self.functions.finished).format(
            seed=self.text.chained(sql.SQL("{}.v").format(pairs), key, depth + 1)
        )
        return sql.SQL(
            "(SELECT {hash} FROM (SELECT COALESCE(pg_catalog.bit_xor({hashes}), 0) AS x,"
            " pg_catalog.count({pairs}.v)::pg_catalog.int4 AS p,"
            " pg_catalog.count(*)::pg_catalog.int4 AS n"
            " FROM {each}({value}) AS {pairs}(k, v)) AS {folded})"
        ).format(
            hash=_folded_hash(self.functions, _held(self, value, depth), seed, depth, null=-1),
            hashes=hashes,
            pairs=pairs,
            each=sql.Identifier(self.schema, "each"),
            value=value,
            folded=sql.Identifier(f"f{depth}"),
        )

    def hashed(self, values: pa.Array, seeds: Seeds) -> Seeds:
        """See ``Form``."""
        # The map is cast to a list of pairs. Its flatten() leaves out what stands behind a NULL.
        kind = values.type
        pair = pa.struct(
            [pa.field("key", kind.key_type, nullable=False), pa.field("value", kind.item_type)]
        )
        lists = values.cast(pa.list_(pair))
        counts = pc.list_value_length(lists).cast(pa.int64())
        keys, items = lists.flatten().flatten()
        key_hashes = self.text.hashed(keys, self.functions.firsts(0, len(keys)))
        hashes = self.functions.finish(self.text.hashed(items, key_hashes))
        lengths, numbers = counts.fill_null(0).to_numpy(), counts.fill_null(-1).to_numpy()
        return _folded(self.functions, hashes, items, numbers, lengths, seeds)


@dataclass(frozen=True)
class StructForm:
    """A struct: whether it is there, then field by field."""

    #: For each field: a function from the SQL of the struct to that of the field, and the field's form.
    fields: tuple[tuple[Callable[[Sql], Sql], Form], ...]
    functions: HashFunctions
    #: A template for ``filled``, see ``Form.fits``.
    condition: str | None = None
    may_hold_sentinel: bool = False

    def fits(self, value: Sql, depth: int) -> Sql | None:
        """See ``Form``."""
        conditions = [] if self.condition is None else [filled(self.condition, value)]
        for taken, form in self.fields:
            own = taken(value)
            condition = form.fits(own, depth + 1)
            if condition is not None:
                conditions.append(
                    sql.SQL("(pg_catalog.num_nulls({}) = 1 OR {})").format(own, condition)
                )
        return sql.SQL("({})").format(sql.SQL(" AND ").join(conditions)) if conditions else None

    def chained(self, value: Sql, seed: Sql, depth: int) -> Sql:
        """See ``Form``."""
        held = _held(self, value, depth)
        there = sql.SQL("CASE WHEN {} THEN 1 ELSE 0 END").format(held)
        seed = sql.SQL(self.functions.int4).format(value=there, seed=seed)
        whole = sql.SQL("(CASE WHEN {} THEN {} END)").format(held, value)
        for taken, form in self.fields:
            seed = form.chained(taken(whole), seed, depth + 1)
        return seed

    def hashed(self, values: pa.Array, seeds: Seeds) -> Seeds:
        """See ``Form``."""
        there = values.is_valid().cast(pa.int32()).to_numpy()
        seeds = self.functions.hash_int4(there, seeds)
        for (_, form), field in zip(self.fields, values.flatten(), strict=True):
            seeds = form.hashed(field, seeds)
        return seeds


def _held(form: Form, value: Sql, depth: int) -> Sql:
    """The SQL condition that the lake holds a value: it is not NULL, and it fits."""
    fits, there = form.fits(value, depth), filled("pg_catalog.num_nulls({}) = 0", value)
    return there if fits is None else sql.SQL("({} AND {})").format(there, fits)


def _folded_hash(functions: HashFunctions, held: Sql, seed: Sql, depth: int, *, null: int) -> Sql:
    """The SQL that hashes three numbers of a list.

    They are: how many elements it has, how many of them are not NULL, and the XOR of their hashes.

    :param held: see ``_held``.
    :param null: stands for the number of elements if the list is NULL.
    """
    folded = sql.Identifier(f"f{depth}")
    count = sql.SQL("CASE WHEN {} THEN {}.n ELSE {} END").format(held, folded, sql.Literal(null))
    for value in (count, sql.SQL("{}.p").format(folded)):
        seed = sql.SQL(functions.int4).format(value=value, seed=seed)
    return sql.SQL(functions.long).format(value=sql.SQL("{}.x").format(folded), seed=seed)


def _folded(
    functions: HashFunctions,
    hashes: Hashes,
    elements: pa.Array,
    counts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    seeds: Seeds,
) -> Seeds:
    """What ``_folded_hash`` computes, for a column of the lake.

    :param counts: how many elements each row has; for a NULL, the number that stands for it.
    :param lengths: how many of ``elements`` belong to each row.
    """
    there = elements.is_valid().to_numpy(zero_copy_only=False).astype(np.int64)
    present, folded = np.zeros(len(lengths), np.int64), np.zeros(len(lengths), np.uint64)
    rows = np.flatnonzero(lengths)
    if len(rows):
        begins = (np.cumsum(lengths) - lengths)[rows]
        present[rows] = np.add.reduceat(there, begins)
        folded[rows] = np.bitwise_xor.reduceat(hashes, begins)
    for numbers in (counts, present):
        seeds = functions.hash_int4(numbers.astype(np.int32), seeds)
    return functions.hash_long(folded.view(np.int64), seeds)
