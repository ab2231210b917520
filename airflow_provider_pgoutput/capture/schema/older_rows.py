"""What older rows of the lake should show in an added column, as far as that is known.

``ADD COLUMN c int DEFAULT 7``: PostgreSQL keeps the 7 in the catalog until the table is rewritten. Any
default that is not constant is written into the rows at once. That is no row event, but the table gets other
files. So if a table has the same files as before, a value that the catalog does not have is NULL. If it has
other files, the value is not known. ``source/attributes.py`` and ``source/storage.py`` read the catalog.

Source: https://www.postgresql.org/docs/current/ddl-alter.html and catalog-pg-attribute.html
"""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch import shape
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

#: Changes by which a column enters the stream. Older rows of the lake have no value in it yet.
_NEW = (shape.ADDED, shape.PUBLISHED)
_WAYS_ON = (
    "copy_tables=[{!r}] brings it in; on_unknown_default='copy' does so by itself from now on,"
    " on_unknown_default='default' writes the column's default if it is a constant"
)


@dataclass(frozen=True)
class OlderRows:
    """Completes added columns from what the catalog says; the fields are those of ``SchemaHistory``."""

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
        """Do what the policy says about added columns in which older rows may show a value.

        :param before: the table at the end of the last batch, or as the batch copied it; None: not known.
        :raises CopyNeeded: the policy wants a copy, and the batch has none.
        :raises SnapshotLost: the policy wants a copy, and the one in the batch is older than the column.
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
            was_there = kinds[number] == shape.PUBLISHED
            if found is None or found.is_dropped:
                # The column is gone, and with it the value that the catalog kept for older rows.
                unknown.add(number)
                continue
            if not self._is_unknown(table.relation_oid, found, before, was_there=was_there):
                continue
            if self.policy.on_unknown_default == COPY and may_copy:
                raise copy_needed(table, found.name)
            refuse_unknown_key(table, number, "was added to the key")
            value = None
            # A column that existed before has its own value in each row, whatever its default is now.
            if self.policy.on_unknown_default == DEFAULT and not was_there:
                value = self.constant_default(table.relation_oid, number)
            if value is None:
                self._warn(table, found.name, was_there=was_there)
                unknown.add(number)
            else:
                values[number] = value
        return self._with_values(table, values, unknown)

    def _of_gone_table(self, table: Table, changes: Sequence[SchemaChange]) -> set[int | str]:
        """Added columns of a table that the catalog no longer has: their numbers, or names if they have none.

        :raises CopyNeeded: the policy wants a copy.
        """
        if self.attributes.get(table.relation_oid):
            return set()
        added = [each for each in changes if each.kind in _NEW]
        for each in added:
            if self.policy.on_unknown_default == COPY:
                raise copy_needed(table, each.column)
            self._warn(table, each.column, was_there=each.kind == shape.PUBLISHED)
        return {each.attribute_number or each.column for each in added}

    def storage_of(self, table: Table, before: Shape | None) -> Storage | None:
        """The table's files at a moment when it had only columns that the batch knows; None: not known.

        The next batch compares its files with these. If they differ, the rows were rewritten since.

        Example: the batch ends with the columns 1 and 2. Then ``ADD COLUMN c float DEFAULT random()`` adds
        column 3 and rewrites all rows. Only after that this run reads the catalog. The files of now have the
        values of ``c`` already, so a comparison with them shows nothing about ``c``. So the files from the
        end of the last batch are recorded. The next batch finds other files: older rows have values in ``c``.
        """
        oid = table.relation_oid
        now, earlier = self.storage.get(oid), self._earlier(oid, before)
        if now is None or earlier is None:
            return now or earlier
        # If the files of now belong to more columns than the batch knows, the earlier files are recorded. At
        # worst VACUUM FULL made the files of now: then the next batch gives a warning that was not needed.
        known = max(table.highest_number or 0, earlier.columns)
        return now if now.columns <= known else earlier

    def _earlier(self, relation_oid: int, before: Shape | None) -> Storage | None:
        """The table's files at the end of the last batch, or else when this run began."""
        known = None if before is None else before.storage
        return known or self.storage_at_start.get(relation_oid)

    def _is_unknown(
        self, relation_oid: int, found: Attribute, before: Shape | None, *, was_there: bool
    ) -> bool:
        """Whether older rows may have a value in an added column, and the catalog does not tell which.

        Examples: ``ADD COLUMN c int DEFAULT 7``: the catalog tells the 7. ``ADD COLUMN c int``: the table
        keeps its files, so older rows have NULL. ``ADD COLUMN c float DEFAULT random()``: the table gets
        other files, so the values are not known.

        :param was_there: the column is older, and was not published before. Each row has a value of its own.
        """
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
        # The files from before the column are not known. So two things are looked at: whether the table was
        # ever rewritten, and whether the column's definition could have filled rows.
        return now.differs() and found.may_have_filled

    def _with_values(
        self, table: Table, values: Mapping[int | None, str], unknown: Set[int | str]
    ) -> Table:
        """The table with the values of older rows where they are known.

        :param values: the values by ``attnum``, as PostgreSQL prints them.
        :param unknown: columns that get ``older_unknown``: their ``attnum``, or their name if they have none.
        """

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
    """The tables' columns. Partitions that the last batch knew may make a value of older rows unknown.

    Example: the catalog keeps a 7 for older rows of partition ``a`` in column ``c``, and nothing for
    partition ``b``. If ``b`` was attached after the last batch, the lake's older rows are those of ``a``, and
    they show the 7. If the last batch knew ``b``, the lake has older rows of both. Then no single value is
    right.
    """
    found = {}
    for oid, columns in attributes.items():
        past = before.get(oid)
        files = past.storage.files if past is not None and past.storage is not None else ()
        leaves = [leaf for leaf, _ in files]
        found[oid] = tuple(each.seen_from(leaves) for each in columns)
    return found


def refuse_unknown_key(table: Table, number: int | None, what: str) -> None:
    """Refuse a key column whose values in older rows are not known.

    Apply would not find these rows by their key, and the lake would have them twice.

    :param number: the column's ``attnum``.
    :param what: what happened to the column, for the message.
    :raises TableRefused: the column is part of a key of the batch, and the batch has no copy.
    :raises SnapshotLost: the same, and the batch has a copy.
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
