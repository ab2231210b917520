"""What rows of the lake that are older than an added column show in it, as far as anybody tells.

PostgreSQL keeps a constant default for them in the catalog until the table is written anew; any other default
it writes into the rows, which is no row event, but gives the table other files. So of a table with the files
that it had, what the catalog does not keep is NULL; of one with others it is not known. What is not
here: reading the catalog (``source/attributes.py``, ``source/storage.py``).

Source: https://www.postgresql.org/docs/current/ddl-alter.html and catalog-pg-attribute.html
"""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch import shape as words
from airflow_provider_pgoutput.batch.answers import COPY, DEFAULT
from airflow_provider_pgoutput.capture.schema.policy import copy_needed, way_on
from airflow_provider_pgoutput.errors import TableRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence, Set

    from airflow_provider_pgoutput.batch.manifest import Table
    from airflow_provider_pgoutput.batch.shape import SchemaChange, Shape, Storage
    from airflow_provider_pgoutput.batch.table_version import Column
    from airflow_provider_pgoutput.capture.schema.policy import SchemaPolicy
    from airflow_provider_pgoutput.capture.source.attributes import Attribute

log = logging.getLogger(__name__)

#: What makes a column of the stream that older rows have nothing of.
_NEW = (words.ADDED, words.PUBLISHED)
_WAYS_ON = (
    "copy_tables=[{!r}] brings it in; on_unknown_default='copy' does so by itself from now on,"
    " on_unknown_default='default' writes the column's default if it is a constant"
)


@dataclass(frozen=True)
class OlderRows:
    """What the catalog says of rows that are older than a column; the arguments are those of the history."""

    policy: SchemaPolicy
    attributes: Mapping[int, tuple[Attribute, ...]]
    storage: Mapping[int, Storage]
    storage_at_start: Mapping[int, Storage]
    showing: Callable[[str, Column, str | None], Column]
    constant_default: Callable[[int, int], str | None]
    _warned: set[tuple[int, str]] = field(default_factory=set)

    def complete(
        self,
        table: Table,
        changes: Sequence[SchemaChange],
        before: Shape | None,
        *,
        may_copy: bool,
    ) -> Table:
        """Do what the policy says about added columns of which older rows may show something.

        :param before: the table at the end of the last batch, or as the batch copied it; None: not known.
        :raises CopyNeeded: the policy wants a copy, and the batch holds none of it.
        :raises SnapshotLost: the policy wants a copy, and that of the batch is older than the column.
        :raises TableRefused: the column is part of the key.
        """
        attributes = {e.number: e for e in self.attributes.get(table.relation_oid, ())}
        kinds = {e.attribute_number: e.kind for e in changes if e.kind in _NEW}
        unknown: set[int | str] = set(() if before is None else before.older_unknown)
        if table.is_gone:
            unknown |= self._of_gone_table(table, changes)
        values: dict[int | None, str] = {}
        for number in sorted(each for each in kinds if each is not None):
            found = attributes.get(number)
            was_there = kinds[number] == words.PUBLISHED
            if found is None or found.is_dropped:
                # What the catalog kept for older rows went with the column.
                unknown.add(number)
                continue
            if not self._is_unknown(table.relation_oid, found, before, was_there=was_there):
                continue
            if self.policy.on_unknown_default == COPY and may_copy:
                raise copy_needed(table, found.name)
            refuse_unknown_key(table, number, "was added to the key")
            value = None
            # One that was there before has its own value in each row, whatever its default is now.
            if self.policy.on_unknown_default == DEFAULT and not was_there:
                value = self.constant_default(table.relation_oid, number)
            if value is None:
                self._warn(table, found.name, was_there=was_there)
                unknown.add(number)
            else:
                values[number] = value
        return self._with_values(table, values, unknown)

    def _of_gone_table(self, table: Table, changes: Sequence[SchemaChange]) -> set[int | str]:
        """Added columns of a table that the catalog does not have any more: numbers, or names without one.

        :raises CopyNeeded: the policy wants a copy.
        """
        if self.attributes.get(table.relation_oid):
            return set()
        added = [each for each in changes if each.kind in _NEW]
        for each in added:
            if self.policy.on_unknown_default == COPY:
                raise copy_needed(table, each.column)
            self._warn(table, each.column, was_there=each.kind == words.PUBLISHED)
        return {each.attribute_number or each.column for each in added}

    def storage_of(self, table: Table, before: Shape | None) -> Storage | None:
        """Where the table lay at a moment when it had no columns but those of the batch, if possible.

        A column that is added later is younger than that moment then, and so is whatever it filled in.
        """
        oid = table.relation_oid
        now, earlier = self.storage.get(oid), self._earlier(oid, before)
        if now is None or earlier is None:
            return now or earlier
        # An earlier moment is as good, but for what wrote the table anew without a new column since.
        known = max(table.highest_number or 0, earlier.columns)
        return now if now.columns <= known else earlier

    def _earlier(self, relation_oid: int, before: Shape | None) -> Storage | None:
        """Where the table lay at the end of the last batch, or at least when this run began."""
        known = None if before is None else before.storage
        return known or self.storage_at_start.get(relation_oid)

    def _is_unknown(
        self, relation_oid: int, found: Attribute, before: Shape | None, *, was_there: bool
    ) -> bool:
        """Whether older rows may show another value in an added column than NULL or the one that is kept."""
        if found.missing_value is not None or found.is_dropped:
            return False
        if was_there:
            return True
        now = self.storage.get(relation_oid)
        if now is None or found.has_several_values:
            return found.may_have_filled or found.has_several_values
        earlier = self._earlier(relation_oid, before)
        if earlier is not None and found.number > earlier.columns:
            return now.differs(earlier)
        # Not known when it had no such column: then its definition of now has to tell.
        return now.differs() and found.may_have_filled

    def _with_values(
        self, table: Table, values: Mapping[int | None, str], unknown: Set[int | str]
    ) -> Table:
        """The table with what older rows show in some columns, and a mark at those of which nobody tells."""

        def completed(column: Column) -> Column:
            number = column.attribute_number
            if (number or column.name) in unknown:
                return dataclasses.replace(column, older_unknown=True)
            value = values.get(number)
            return column if value is None else self.showing(table.name, column, value)

        return dataclasses.replace(
            table,
            versions=tuple(
                dataclasses.replace(each, columns=tuple(map(completed, each.columns)))
                for each in table.versions
            ),
        )

    def _warn(self, table: Table, column: str, *, was_there: bool) -> None:
        if (table.relation_oid, column) in self._warned:
            return
        self._warned.add((table.relation_oid, column))
        if was_there:
            log.warning(
                "%s: the column %s was there before and was not in the stream, as it was generated or no"
                " column list had it. It is published from now on. The stream does not tell what older rows"
                " have in it: they have NULL in the lake until they change. copy_tables=[%r] brings it in;"
                " on_unknown_default='copy' does so by itself from now on.",
                table.name,
                column,
                table.name,
            )
            return
        log.warning(
            "%s: what older rows show in the added column %s is neither in the stream nor in the catalog"
            " (its default is no constant, or the table was rewritten since, or is gone): they have NULL in"
            " the lake until they change. %s.",
            table.name,
            column,
            way_on(table, _WAYS_ON.format(table.name)),
        )


def seen_from(
    before: Mapping[int, Shape], attributes: Mapping[int, tuple[Attribute, ...]]
) -> dict[int, tuple[Attribute, ...]]:
    """The columns of tables, where the last batch tells which partitions a table had then."""
    found = {}
    for oid, columns in attributes.items():
        shape = before.get(oid)
        files = shape.storage.files if shape is not None and shape.storage is not None else ()
        leaves = [leaf for leaf, _ in files]
        found[oid] = tuple(each.seen_from(leaves) for each in columns)
    return found


def refuse_unknown_key(table: Table, number: int | None, what: str) -> None:
    """Refuse a key whose values in older rows nobody tells: these rows would not be found, and double.

    :raises TableRefused: the column is part of a key of the batch.
    """
    for version in table.versions:
        for column in version.columns:
            if column.attribute_number == number and column.name in version.key_columns:
                if table.copy_lsn is not None:
                    raise copy_needed(table, column.name)
                raise TableRefused(
                    f"The column {what}, and neither the stream nor the catalog tells what older rows hold in"
                    " it now; without it they cannot be found.",
                    table=table.name,
                    column=column.name,
                    advice=f"copy the table again (copy_tables=[{table.name!r}]).",
                )
