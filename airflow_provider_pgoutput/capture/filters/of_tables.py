"""Which table has which filter, and when the run or the table is refused because of it.

Copies, repairs and comparisons read rows by SQL. There the server evaluates the filter, and a row has to pass
the publication's row filters, too (``PublishedTable.row_filters``). Changes of the stream are filtered here.

An update that brings a row into the filter becomes an insert. One that takes it out becomes a delete.
PostgreSQL's own row filters do the same.

Source: https://www.postgresql.org/docs/current/logical-replication-row-filter.html
"""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.filters.conditions import TypedColumn, TypedCondition
from airflow_provider_pgoutput.capture.masking import lost_tables, possible_numbers
from airflow_provider_pgoutput.capture.source.errors import translated
from airflow_provider_pgoutput.capture.types.arrow_bytes import in_parts
from airflow_provider_pgoutput.errors import ConfigurationError, TableRefused
from airflow_provider_pgoutput.filters import (
    ColumnOfSource,
    columns_of,
    is_filter_of_now,
    is_same_condition,
    recorded,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.batch.shape import Shape
    from airflow_provider_pgoutput.capture.pgoutput.blocks import ChangeBlock, Forms
    from airflow_provider_pgoutput.capture.pgoutput.messages import PartitionIdentity, Relation
    from airflow_provider_pgoutput.capture.source.catalog import PublishedTable
    from airflow_provider_pgoutput.capture.source.session import Session
    from airflow_provider_pgoutput.capture.types.type_info import TypeInfo
    from airflow_provider_pgoutput.errors import PgoutputError
    from airflow_provider_pgoutput.filters import Condition
    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint

    TypesOf = Callable[[Iterable[PublishedTable]], Mapping[int, TypeInfo]]

log = logging.getLogger(__name__)

_INSERT, _UPDATE, _DELETE, _TRUNCATE = b"IUDT"

_UNSURE_QUERY: Final = """
SELECT a.attname::pg_catalog.text
  FROM pg_catalog.pg_attribute a
  JOIN pg_catalog.pg_collation c ON c.oid = a.attcollation AND NOT c.collisdeterministic
 WHERE a.attrelid = %s::pg_catalog.oid AND a.attnum > 0
"""

_COPY: Final = "copy the table again: copy_tables=[{!r}] in one run."


def typed_condition(
    session: Session,
    table: PublishedTable,
    condition: Condition,
    types: Mapping[int, TypeInfo],
) -> TypedCondition:
    """A filter with the types of a table.

    :raises ConfigurationError: it does not go with the columns of the table.
    """
    with translated():
        rows = session.execute(_UNSURE_QUERY, (table.relation_oid,)).fetchall()
    columns = [TypedColumn(e.name, e.type_oid, e.type_modifier) for e in table.columns]
    return TypedCondition(condition, columns, types, table.name, {name for (name,) in rows})


def with_filter(table: PublishedTable, condition: TypedCondition) -> PublishedTable:
    """The table whose rows also have to pass a filter."""
    ours = condition.sql
    filters = tuple(f"({each}) AND {ours}" for each in table.row_filters)
    return dataclasses.replace(table, row_filters=filters or (ours,))


def columns_of_source(table: PublishedTable, condition: Condition) -> dict[str, ColumnOfSource]:
    """The columns of a condition by name."""
    names = columns_of(condition)
    return {
        each.name: ColumnOfSource(each.attribute_number, each.type_oid, each.type_modifier)
        for each in table.columns
        if each.name in names
    }


@dataclass(frozen=True, slots=True)
class _OfTable:
    """The filter of a published table."""

    #: With the columns that a mask drops.
    table: PublishedTable
    condition: Condition
    unsure: frozenset[str]

    @property
    def columns(self) -> dict[str, ColumnOfSource]:
        return columns_of_source(self.table, self.condition)

    def fits(self, relation: Relation) -> bool:
        """Whether the stream announced the columns as the catalog has them, as far as a filter needs them."""
        names = [each.name for each in relation.columns]
        return names == [each.name for each in self.table.columns] and self.has_types_of(relation)

    def has_types_of(self, relation: Relation) -> bool:
        """Whether the columns of the condition have the types that the stream announced."""
        sent = {each.name: (each.type_oid, each.type_modifier) for each in relation.columns}
        return all(
            sent.get(name) == (each.type_oid, each.type_modifier)
            for name, each in self.columns.items()
        )


class Filters:
    """The filters of one run.

    :param session: a session that no read of the stream uses.
    :param configured: by ``schema.table``.
    :param types_of: reads the users' types in the columns of tables.
    :param completed: what the partitions of a root send, see ``Keys.completed``.
    :param checkpoint: says which filters the lake's rows passed; None: the lake has no rows.
    :param read_again: reads the published tables again, and gives them to ``published``.
    :param adopts: whether the lake goes on from another system with this run.
    """

    def __init__(
        self,
        session: Session,
        configured: Mapping[str, Condition],
        types_of: TypesOf,
        completed: Callable[[Relation], frozenset[PartitionIdentity]],
        checkpoint: Checkpoint | None,
        read_again: Callable[[], object],
        *,
        adopts: bool = False,
    ) -> None:
        self._session, self._configured, self._adopts = session, configured, adopts
        #: By OID: why nothing of a table can be staged.
        self.unfit: dict[int, PgoutputError] = {}
        #: Whether ``check`` was called. After it, a filter that fits the catalog no more ends the run.
        self._is_checked = False
        self._types_of, self._completed, self._read_again = types_of, completed, read_again
        self._shapes: Mapping[int, Shape] = {} if checkpoint is None else checkpoint.shapes
        self._shapes_by_name = {} if checkpoint is None else checkpoint.shapes_by_name
        self._lake_names: Mapping[int, str] = (checkpoint.tables if checkpoint else None) or {}
        #: Whether any table has a filter, or had one in the lake.
        self.is_used = bool(configured) or any(e.row_filter for e in self._shapes.values())
        self._tables: dict[int, PublishedTable] = {}
        self._of_tables: dict[int, _OfTable] = {}
        #: By OID: the filter that a table had when this run saw it first, as it is written down.
        self._seen: dict[int, str | None] = {}
        #: By OID: the last announcement, and its filter.
        self._announced: dict[int, tuple[Relation, _OfRelation | None]] = {}

    def published(self, tables: Sequence[PublishedTable]) -> tuple[PublishedTable, ...]:
        """Take the tables as the catalog has them now; return them with their filters.

        :raises ConfigurationError: a filter does not go with its table, see ``_is_of_source``.
        """
        if not self.is_used:
            return tuple(tables)
        self._tables = {each.relation_oid: each for each in tables}
        self._of_tables = {}
        found = []
        for table in tables:
            condition = self._configured.get(table.name)
            if condition is None or table.relation_oid in self.unfit:
                found.append(table)
                continue
            try:
                typed = self._typed(table, condition)
                _refuse_identity(table, condition)
            except ConfigurationError as error:
                if not self._is_of_source(table, condition):
                    raise
                self.unfit[table.relation_oid] = error
                found.append(table)
                continue
            self._of_tables[table.relation_oid] = _OfTable(table, condition, typed.unsure)
            self._refuse_renamed_in_run(table)
            found.append(with_filter(table, typed))
        return tuple(found)

    def _is_of_source(self, table: PublishedTable, condition: Condition) -> bool:
        """Whether the table alone is to blame: the lake's rows passed this filter, and it fits no more.

        Example: somebody renamed ``region`` last night. Then ``unfit`` gets the error, and
        ``on_table_refused`` decides. If not, the user may have mistyped the filter. Then the run ends, so
        that nobody copies a table because of a mistyped word.
        """
        shape = self._shapes.get(table.relation_oid)
        in_lake = None if shape is None else shape.row_filter
        is_new_in_run = self._is_checked and table.relation_oid not in self.unfit
        return not is_new_in_run and is_filter_of_now(in_lake, condition, _names(table))

    def _refuse_renamed_in_run(self, table: PublishedTable) -> None:
        now = self.recorded(table.relation_oid)
        if self._seen.setdefault(table.relation_oid, now) != now:
            raise ConfigurationError(
                "A column of the filter was renamed, or got another type, while the run read its table.",
                table=table.name,
                advice=f"nothing was staged. {_COPY.format(table.name)}",
            )

    def filtered(self, tables: Iterable[PublishedTable]) -> tuple[PublishedTable, ...]:
        """The tables as another snapshot has them, with their filters."""
        return tuple(
            each
            if (condition := self._configured.get(each.name)) is None
            or each.relation_oid in self.unfit
            else with_filter(each, self._typed(each, condition))
            for each in tables
        )

    def _typed(self, table: PublishedTable, condition: Condition) -> TypedCondition:
        return typed_condition(self._session, table, condition, self._types_of([table]))

    def check(self, copied: Collection[str] = ()) -> None:
        """Compare the filters with those that the lake's rows passed. Read the catalog just before it.

        If only the source was altered, ``unfit`` gets the error.

        :param copied: names of the tables whose rows are copied in this batch.
        :raises ConfigurationError: a name in ``filters`` is no published table. Example: ``orders`` is called
            ``sales`` now. Or the lake's rows passed another filter. Or the lake does not know a table, and it
            may be one with a filter under another name.
        """
        if not self.is_used:
            return
        self._refuse_unknown_names()
        for oid, table in self._tables.items():
            if table.name in copied or oid in self.unfit:
                continue
            if oid not in self._lake_names:
                self._check_by_name(table)
                continue
            shape = self._shapes.get(oid)
            if (None if shape is None else shape.row_filter) != self.recorded(oid):
                error = ConfigurationError(
                    "The lake's rows were filtered in another way than filters says now. Its condition"
                    " differs, or a column of it was renamed or got another type.",
                    table=table.name,
                    advice=_COPY.format(table.name)
                    + " In mode upsert the copy replaces all rows of the"
                    " table. If only filters was changed, you may give the old condition back.",
                )
                condition = self._configured.get(table.name)
                if condition is None or not self._is_of_source(table, condition):
                    raise error
                self.unfit[oid] = error
        self._is_checked = True

    def _check_by_name(self, table: PublishedTable) -> None:
        """Refuse the filter of a table that was made again, here or on another system.

        The lake knows it by its name only: its OID and the numbers of its columns are new.

        :raises ConfigurationError: the lake's rows passed another one. Or the lake does not know the table,
            and it may be one with a filter under another name.
        """
        now = self.recorded(table.relation_oid)
        shape = self._shapes_by_name.get(table.name)
        if shape is not None and not is_same_condition(shape.row_filter, now):
            raise ConfigurationError(
                "The table was made again, and filters has another condition for it than the lake's rows"
                " passed.",
                table=table.name,
                advice=f"give the condition of before. Or {_COPY.format(table.name)}",
            )
        if shape is not None or now is not None or not self._adopts:
            return
        filtered = {
            name for name, each in self._shapes_by_name.items() if each.row_filter is not None
        }
        known = self._shapes_by_name
        lost = lost_tables(self._tables.values(), known, filtered, self._configured)
        if lost:
            raise ConfigurationError(
                f"The lake does not know the table, and this system does not publish {lost[0]}, which has a"
                " filter in the lake. It may be that table under another name.",
                table=table.name,
                advice="if it is, name it in filters. If it is not, name it:"
                f" copy_tables=[{table.name!r}].",
            )

    def _refuse_unknown_names(self) -> None:
        published = {each.name for each in self._tables.values()}
        gone = {name for oid, name in self._lake_names.items() if oid not in self._tables}
        for name in sorted(self._configured.keys() - published):
            if name in gone:
                log.warning("filters names %s, which is not published any more: take it out.", name)
                continue
            raise ConfigurationError(
                f"filters names no published table: {name}.",
                advice="spell it schema.table. A partitioned table is named as the publication sends it: the"
                " root with publish_via_partition_root, its partitions without.",
            )

    def check_sealed(self, manifest: Manifest, *, is_of_earlier_system: bool = False) -> None:
        """Refuse a batch that an earlier run sealed with other filters.

        :param is_of_earlier_system: whether its OIDs mean nothing on this server.
        :raises ConfigurationError: its files have other rows than those that this run would stage.
        """
        by_name = {each.name: each for each in self._tables.values()}
        for table in manifest.tables:
            oid = table.relation_oid
            now = by_name.get(table.name) if is_of_earlier_system else self._tables.get(oid)
            if self.is_used and now is None:
                continue
            condition = None if now is None else self._configured.get(now.name)
            if is_of_earlier_system and condition is None:
                # The request has no filter for it, so no row of the batch is one too many.
                continue
            # Numbers of an earlier system mean nothing here.
            names = None if is_of_earlier_system or now is None else _names(now)
            written = [each.row_filter for each in table.versions]
            if not all(is_filter_of_now(each, condition, names) for each in written):
                raise ConfigurationError(
                    "An earlier run sealed the next batch with another filter of the table, or with none.",
                    table=table.name,
                    advice="apply that batch with the filter that it has, and change the filter then; or,"
                    " before the first apply, drop the slot and empty its folder of the staging area.",
                )

    def recorded(self, relation_oid: int) -> str | None:
        """The filter of a table as it is written down; None: it has none.

        :raises PgoutputError: nothing of the table can be staged.
        """
        if relation_oid in self.unfit:
            raise self.unfit[relation_oid]
        found = self._of_tables.get(relation_oid)
        return None if found is None else recorded(found.condition, found.columns)

    def passing(self, block: ChangeBlock) -> ChangeBlock:
        """The changes of a block that pass. An update that crosses the filter becomes an insert or a delete.

        :raises TableRefused: a change does not tell whether its rows pass.
        :raises PgoutputError: nothing of the table can be staged.
        """
        # A truncate has no row. The partitions of its table may not be announced yet.
        if not self.is_used or (block.op == _TRUNCATE).all():
            return block
        relation = block.relation
        known = self._announced.get(relation.oid)
        if known is None or known[0] != relation:
            known = relation, self._of_relation(relation)
            self._announced[relation.oid] = known
        of_relation = known[1]
        return block if of_relation is None else of_relation.passing(block)

    def _of_relation(self, relation: Relation) -> _OfRelation | None:
        """The filter of a relation as the stream announced it.

        The stream sends names of columns, not their numbers, see ``possible_numbers``. Example: ``region``
        and ``area`` swapped names and swapped back. So the ``region`` of the stream may be ``area``.

        :raises TableRefused: it is not sure that a column is the filter's, or its old values are not sent.
        """
        oid, names = relation.oid, [each.name for each in relation.columns]
        whole = self._of_tables.get(oid)
        if whole is not None and not whole.fits(relation):
            # A column may have come, or got another type, since the run began.
            self._read_again()
            whole = self._of_tables.get(oid)
        if oid in self.unfit:
            raise self.unfit[oid]
        if whole is None:
            if oid not in self._tables and self._was_filtered(relation):
                raise _unsure(
                    relation,
                    "The table is not published any more.",
                    "publish it again, or take it out of filters.",
                )
            return None
        possible = possible_numbers(names, whole.table, self._shapes.get(oid))
        numbers = dict(zip(names, possible, strict=True))
        if set() in possible or None in possible:
            raise _unsure(relation, "Its columns had other names when these changes were made.")
        for name, column in whole.columns.items():
            if numbers.get(name) != {column.number}:
                raise _unsure(relation, "A column of its filter had another name, or was not sent.")
        if not whole.has_types_of(relation):
            raise _unsure(relation, "A column of its filter had another type.")
        wanted = columns_of(whole.condition)
        self._refuse_unsent(relation, wanted)
        columns = [
            TypedColumn(each.name, each.type_oid, each.type_modifier) for each in relation.columns
        ]
        types = self._types_of([whole.table])
        condition = TypedCondition(whole.condition, columns, types, relation.name, whole.unsure)
        return _OfRelation(condition, tuple(names.index(name) for name in wanted), wanted)

    def _was_filtered(self, relation: Relation) -> bool:
        shape = self._shapes.get(relation.oid)
        return relation.name in self._configured or (
            shape is not None and shape.row_filter is not None
        )

    def _refuse_unsent(self, relation: Relation, wanted: Sequence[str]) -> None:
        """Refuse a relation whose old tuples lack a column of the filter."""
        if relation.partitions:
            is_sent = all(each.covers(wanted) for each in self._completed(relation))
        else:
            sent = {each.name for each in relation.columns if each.is_identity}
            is_sent = relation.replica_identity == "f" or sent.issuperset(wanted)
        if not is_sent:
            raise _unsure(
                relation,
                "Its replica identity, or that of a partition, did not have all columns of the filter when"
                " these changes were made.",
            )


def _unsure(relation: Relation, why: str, advice: str | None = None) -> TableRefused:
    return TableRefused(
        f"It is not known which changes of the table pass its filter. {why}",
        table=relation.name,
        advice=advice or _COPY.format(relation.name),
    )


def _names(table: PublishedTable) -> dict[int, str]:
    return {each.attribute_number: each.name for each in table.columns}


def _refuse_identity(table: PublishedTable, condition: Condition) -> None:
    """Refuse a filter whose columns are not all in the replica identity: old rows would lack their values.

    :raises ConfigurationError: it names the first such column.
    """
    wanted = columns_of(condition)
    if table.kind == "p":
        lacking = [
            (name, each.identity.name if each.identity else "")
            for each in table.leaves
            for name in wanted
            if each.identity is None or not each.identity.covers([name])
        ]
    else:
        sent = {each.name for each in table.columns if each.is_identity}
        lacking = [(name, "") for name in wanted if name not in sent]
    if lacking:
        column, partition = lacking[0]
        where = f" of partition {partition}" if partition else " of the table"
        raise ConfigurationError(
            f"The filter has a column that is not in the replica identity{where}. So an update or a delete"
            " does not tell whether the old row passed.",
            table=table.name,
            column=column,
            advice="ALTER TABLE ... REPLICA IDENTITY FULL. Or USING INDEX, with a unique index that has the"
            " columns of the filter; all its columns must be NOT NULL.",
        )


@dataclass(frozen=True, slots=True)
class _Decided:
    """What becomes of the changes of a block, by change."""

    stays: NDArray[np.bool_]
    #: Updates whose old row does not pass, and whose new one does.
    enters: NDArray[np.bool_]
    #: The other way around.
    leaves: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _OfRelation:
    """The filter of a relation as the stream announced it."""

    condition: TypedCondition
    #: Positions of the columns of the condition, and their names.
    positions: tuple[int, ...]
    names: tuple[str, ...]

    def passing(self, block: ChangeBlock) -> ChangeBlock:
        """See ``Filters.passing``."""
        decided = list(in_parts(self._decided, block))
        stays, enters, leaves = (
            np.concatenate([getattr(each, name) for each in decided])
            for name in ("stays", "enters", "leaves")
        )
        if enters.any() or leaves.any():
            block = _crossed(block, enters, leaves)
        return block if stays.all() else block.where(stays)

    def _decided(self, block: ChangeBlock) -> _Decided:
        op = block.op
        has_new = (op == _INSERT) | (op == _UPDATE)
        has_old = block.old_kind != 0
        new, old = {}, {}
        for position, name in zip(self.positions, self.names, strict=True):
            old[name] = _column(block.old[position], block.old_binary[position], len(block))
            new[name] = self._new(block, position, old[name])
        now = self.condition.passes(new) & has_new
        # Without an old tuple no column of the replica identity changed. The filter has only such columns.
        before = np.where(has_old, self.condition.passes(old), now) if has_old.any() else now
        is_update = op == _UPDATE
        stays = np.where(op == _DELETE, before & has_old, now | (is_update & before))
        return _Decided(
            stays | (op == _TRUNCATE), is_update & now & ~before, is_update & before & ~now
        )

    def _new(
        self, block: ChangeBlock, position: int, old: tuple[pa.Array, Forms]
    ) -> tuple[pa.Array, Forms]:
        """A column of the new tuples. The server leaves large values out that the update did not change.

        Such a value is taken from the old tuple.

        :raises TableRefused: it is not there either.
        """
        raw, forms = _column(block.new[position], block.new_binary[position], len(block))
        flags = block.unchanged[position]
        if flags is None or not flags.any():
            return raw, forms
        lacking = flags & ~old[0].is_valid().to_numpy(zero_copy_only=False)
        if lacking.any():
            lsn = Lsn(int(block.commit_lsn[int(np.argmax(lacking))]))
            raise TableRefused(
                "The server left out a large value of a column of the filter, so it is not known whether the"
                " row passes.",
                table=block.relation.name,
                column=block.relation.columns[position].name,
                lsn=lsn,
                advice=_COPY.format(block.relation.name),
            )
        return _filled(raw, forms, *old, flags)


def _column(raw: pa.Array | None, forms: Forms, count: int) -> tuple[pa.Array, Forms]:
    return (pa.nulls(count, pa.binary()), False) if raw is None else (raw, forms)


def _filled(
    new: pa.Array, new_forms: Forms, old: pa.Array, old_forms: Forms, chosen: NDArray[np.bool_]
) -> tuple[pa.Array, Forms]:
    """The new values, and the old ones where they are chosen."""
    values = pc.if_else(pa.array(chosen), old, new)
    if isinstance(new_forms, bool) and new_forms is old_forms:
        return values, new_forms
    return values, np.where(chosen, old_forms, new_forms)


def _crossed(
    block: ChangeBlock, enters: NDArray[np.bool_], leaves: NDArray[np.bool_]
) -> ChangeBlock:
    """The block with inserts of the rows that enter the filter, and deletes of those that leave it."""
    count, op, old_kind = len(block), block.op.copy(), block.old_kind.copy()
    op[enters], op[leaves] = _INSERT, _DELETE
    old_kind[enters] = 0
    new, old, new_binary, unchanged = [], [], [], []
    for position, of_block in enumerate(block.unchanged):
        flags = of_block
        values, forms = _column(block.new[position], block.new_binary[position], count)
        before, old_forms = _column(block.old[position], block.old_binary[position], count)
        if flags is not None and (chosen := flags & enters).any():
            # The old tuple may lack the value, too. Then the insert keeps its mark, and a later step refuses
            # the table. PostgreSQL's own row filter sends such inserts, too.
            chosen &= before.is_valid().to_numpy(zero_copy_only=False)
            values, forms = _filled(values, forms, before, old_forms, chosen)
            flags = flags & ~chosen
        new.append(_without(values, leaves))
        old.append(_without(before, enters))
        new_binary.append(forms)
        unchanged.append(None if flags is None else flags & ~leaves)
    return dataclasses.replace(
        block,
        op=op,
        old_kind=old_kind,
        new=tuple(new),
        old=tuple(old),
        new_binary=tuple(new_binary),
        unchanged=tuple(unchanged),
    )


def _without(values: pa.Array, rows: NDArray[np.bool_]) -> pa.Array:
    return (
        pc.if_else(pa.array(rows), pa.scalar(None, values.type), values) if rows.any() else values
    )
