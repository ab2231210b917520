"""Which column of the source has which mask, and when a mask must not be followed.

A mask is named by ``schema.table.column``, and columns are renamed. So three things are compared: the names
that the request has, the columns that the catalog has now, and those that the lake had after the last batch
(``Shape``). A column that may be a masked one under another name is refused: its values would be plain.

``types/masked.py`` masks the values.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.shape import masked_columns
from airflow_provider_pgoutput.capture.pgoutput.messages import Relation
from airflow_provider_pgoutput.errors import ConfigurationError, TableRefused
from airflow_provider_pgoutput.masks import (
    DROP,
    HASH,
    WITH_OTHER_HASHES,
    Mask,
    in_words,
    is_hash,
    recorded_mask,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.batch.shape import Shape
    from airflow_provider_pgoutput.capture.source.catalog import PublishedColumn, PublishedTable
    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint
    from airflow_provider_pgoutput.masks import MaskedColumn

log = logging.getLogger(__name__)

_WITH_A_COPY = (
    "copy the table again with the masks as they are now: copy_tables=[{!r}] in one run. The copy replaces"
    " all rows of the table; older snapshots of the lake keep theirs until they expire."
)
_NOTHING_BEFORE = "copy the table again (copy_tables=[{!r}]): no change from before is needed."
_WITHOUT_NAME = (
    "if it shall stay masked, name it in columns: {!r}: {!r}. Only if the lake shall have its plain values,"
    " copy the table again (copy_tables)."
)


class Masks:
    """The masks of one run.

    :param configured: by ``schema.table.column``.
    :param secret: of ``hash``; None: no column has it.
    :param checkpoint: says which masks the lake's rows have; None: the lake has no rows.
    :param read_again: reads the published tables again, and gives them to ``published``; None: it cannot be
        done.
    :param adopts: whether the lake goes on from another system with this run.
    """

    def __init__(
        self,
        configured: Mapping[str, Mask],
        secret: bytes | None,
        checkpoint: Checkpoint | None,
        read_again: Callable[[], object] | None = None,
        *,
        adopts: bool = False,
    ) -> None:
        self._configured = configured
        self._adopts = adopts
        self.secret = secret
        self._shapes: Mapping[int, Shape] = {} if checkpoint is None else checkpoint.shapes
        self._shapes_by_name = {} if checkpoint is None else checkpoint.shapes_by_name
        self._lake_names: Mapping[int, str] = (checkpoint.tables if checkpoint else None) or {}
        #: Whether any column has a mask, or had one in the lake.
        self.is_used = bool(configured) or any(each.masks for each in self._shapes.values())
        #: The published tables as the catalog has them, with the columns that a mask drops.
        self._tables: dict[int, PublishedTable] = {}
        self._read_again = read_again
        #: By OID and number: the mask that a column had when this run saw it first.
        self._seen: dict[tuple[int, int], Mask | None] = {}

    def published(self, tables: Sequence[PublishedTable]) -> tuple[PublishedTable, ...]:
        """Take the tables as the catalog has them now; return them without the columns that a mask drops."""
        self._tables = {each.relation_oid: each for each in tables}
        return self.without_dropped(tables)

    def without_dropped(self, tables: Sequence[PublishedTable]) -> tuple[PublishedTable, ...]:
        """The tables without the columns that a mask drops."""
        if not self.is_used:
            return tuple(tables)
        return tuple(
            dataclasses.replace(
                table,
                columns=tuple(
                    each
                    for each in table.columns
                    if (mask := self._now(table, each.name)) is None or mask.kind != DROP
                ),
            )
            for table in tables
        )

    @property
    def whole_tables(self) -> tuple[PublishedTable, ...]:
        """The published tables, with the columns that a mask drops."""
        return tuple(self._tables.values())

    def check(self, copied: Collection[str] = ()) -> None:
        """Refuse masks that cannot be followed. The catalog was just read.

        :param copied: names of the tables whose rows are copied in this batch.
        :raises ConfigurationError: a name is no published column; a mask is not possible for its column; or
            the lake's rows have another mask.
        """
        if not self.is_used:
            return
        self._refuse_unknown_names()
        for table in self._tables.values():
            self._refuse_key(table)
            self._refuse_changed_in_run(table)
            if table.name in copied:
                continue
            if table.relation_oid in self._lake_names:
                self._refuse_other_than_lake(table)
            elif (shape := self._shapes_by_name.get(table.name)) is not None:
                self._refuse_other_by_name(table, shape)
            elif self._adopts:
                self._refuse_unknown(table)

    def check_sealed(self, manifest: Manifest, *, is_of_earlier_system: bool = False) -> None:
        """Refuse a batch that an earlier run sealed with other masks.

        Its columns may have other names by now, so they are known by their numbers. A masked column that is
        gone since has the mask of that run: nobody can name it any more.

        :param is_of_earlier_system: whether its OIDs and numbers mean nothing on this server.
        :raises ConfigurationError: its files may have plain values.
        """
        for table in manifest.tables if self.is_used else ():
            now = None if is_of_earlier_system else self._tables.get(table.relation_oid)
            names = {} if now is None else {e.attribute_number: e.name for e in now.columns}
            for version in table.versions:
                found = {each.name: each.mask for each in masked_columns(version)}
                numbers = {each.name: each.attribute_number or 0 for each in version.columns}
                numbers |= {name: number for number, name in version.dropped}
                name = f"{version.schema_name}.{version.table_name}"
                for column, number in numbers.items():
                    if now is not None and number in names:
                        mask = self._now(now, names[number])
                    elif is_of_earlier_system:
                        mask = self._configured.get(f"{name}.{column}")
                        if mask is None:
                            continue
                    elif column in found:
                        continue
                    else:
                        mask = self._of(table.relation_oid, name, column)
                    wanted = None if mask is None else mask.recorded(self.secret)
                    if wanted != found.get(column):
                        raise _other_mask_sealed(found.get(column), wanted, table.name, column)

    def of(self, relation_oid: int, table: str, columns: Iterable[str]) -> dict[str, Mask]:
        """The masks of a table's columns, as the stream or the catalog names them.

        :param table: ``schema.table``.
        :raises TableRefused: a column may be a masked one under another name.
        """
        if not self.is_used:
            return {}
        names = list(columns)
        if self._has_masks(relation_oid, table) and not self._is_as_in_catalog(relation_oid, names):
            self._look_again()
        if not self._has_masks(relation_oid, table):
            return {}
        numbers = dict(zip(names, self._numbers(relation_oid, names), strict=True))
        if set() in numbers.values():
            raise TableRefused(
                "Changes came while the columns of the table had their names in another order. A name may"
                " have been that of a masked column, so nothing of them is staged.",
                table=table,
                column=next(name for name, each in numbers.items() if each == set()),
                advice=_NOTHING_BEFORE.format(table),
            )
        found = {
            name: mask
            for name in names
            if (mask := self._of(relation_oid, table, name, numbers[name])) is not None
        }
        unknown = [
            each
            for each in names
            if each not in found and not self._is_known_plain(relation_oid, each)
        ]
        if unknown:
            raise TableRefused(
                "Changes came in a column that neither the catalog nor the lake knows. It may be a masked"
                " column under another name, so nothing of it is staged.",
                table=table,
                column=unknown[0],
                advice=_NOTHING_BEFORE.format(table),
            )
        return found

    def dropped(self, table: PublishedTable | Relation) -> tuple[tuple[int, str], ...]:
        """Number and name of the columns of a table that a mask leaves out.

        A published table that was made by ``published`` does not have them any more.
        """
        oid = table.oid if isinstance(table, Relation) else table.relation_oid
        whole = self._tables.get(oid, table) if not isinstance(table, Relation) else table
        names = [each.name for each in whole.columns] if self.is_used else []
        return tuple(
            (self.number_of(oid, name), name)
            for name, numbers in zip(names, self._numbers(oid, names), strict=True)
            if (mask := self._of(oid, table.name, name, numbers)) is not None and mask.kind == DROP
        )

    def recorded(self, mask: Mask) -> str:
        """See ``Mask.recorded``."""
        return mask.recorded(self.secret)

    def from_recorded(self, recorded: str) -> Mask:
        """The mask that was written down.

        :raises ConfigurationError: it is a hash with another secret.
        """
        found = recorded_mask(recorded, self.secret)
        if found is None:
            raise ConfigurationError(
                "A column is hashed with a secret that this run does not have.",
                advice="give the secret of the lake's rows in mask_conn_id.",
            )
        return found

    def masked_in_key(self, table: PublishedTable) -> list[PublishedColumn]:
        """The columns of a table's key that have a mask."""
        return [
            each
            for each in table.columns
            if each.name in table.key_columns
            and self._of(table.relation_oid, table.name, each.name)
        ]

    def number_of(self, relation_oid: int, column: str) -> int:
        """The column's ``attnum`` by the catalog; 0: not known."""
        table = self._tables.get(relation_oid)
        columns = () if table is None else table.columns
        return next((each.attribute_number for each in columns if each.name == column), 0)

    def _now(self, table: PublishedTable, column: str) -> Mask | None:
        return self._configured.get(f"{table.name}.{column}")

    def _numbers(self, relation_oid: int, names: Sequence[str]) -> list[set[int] | None]:
        table, shape = self._tables.get(relation_oid), self._shapes.get(relation_oid)
        return possible_numbers(names, table, shape)

    def _of(
        self, relation_oid: int, table: str, column: str, numbers: Collection[int] | None = None
    ) -> Mask | None:
        """The mask of a column by a name that it has or had.

        :param numbers: those that it may have. If there is one, and the catalog has it, it decides.
        """
        now = self._tables.get(relation_oid)
        if now is not None and numbers and len(numbers) == 1:
            for each in now.columns:
                if each.attribute_number in numbers:
                    return self._now(now, each.name)
        return self._by_name(relation_oid, table, column)

    def _by_name(self, relation_oid: int, table: str, column: str) -> Mask | None:
        """The mask of a column, if only its name is known."""
        if (mask := self._configured.get(f"{table}.{column}")) is not None:
            return mask
        now = self._tables.get(relation_oid)
        if now is not None and (mask := self._now(now, column)) is not None:
            return mask
        shape = self._shapes.get(relation_oid)
        if shape is None:
            return None
        # Changes from before a rename have the column's earlier name.
        before = {each.number for each in shape.columns if each.name == column}
        before |= {each.number for each in shape.masks if each.name == column}
        for each in () if now is None else now.columns:
            if each.attribute_number in before:
                return self._now(now, each.name) if now is not None else None
        for masked in shape.masks:
            if masked.name == column:
                # The column is gone. Changes from before that are masked as those in the lake.
                return self.from_recorded(masked.mask)
        return None

    def _has_masks(self, relation_oid: int, table: str) -> bool:
        """Whether any column of a table has a mask, or had one."""
        shape, now = self._shapes.get(relation_oid), self._tables.get(relation_oid)
        prefixes = {f"{table}."} | (set() if now is None else {f"{now.name}."})
        return bool(shape is not None and shape.masks) or any(
            name.startswith(prefix) for prefix in prefixes for name in self._configured
        )

    def _is_as_in_catalog(self, relation_oid: int, names: Sequence[str]) -> bool:
        """Whether a table has these columns, in the order of their numbers."""
        table = self._tables.get(relation_oid)
        whole = [] if table is None else [each.name for each in table.columns]
        return whole == names or [name for name in whole if name in names] == names

    def _look_again(self) -> None:
        """Read the catalog again: a column may have come, or another may have its name, since the run began.

        :raises ConfigurationError: a masked column was renamed meanwhile.
        """
        if self._read_again is not None:
            self._read_again()
            self._refuse_unknown_names()
            for table in self._tables.values():
                self._refuse_changed_in_run(table)

    def _is_known_plain(self, relation_oid: int, column: str) -> bool:
        """Whether the catalog or the lake has a column of this name without a mask."""
        table, shape = self._tables.get(relation_oid), self._shapes.get(relation_oid)
        if table is not None and any(each.name == column for each in table.columns):
            return True
        masked = set() if shape is None else {each.name for each in shape.masks}
        names = set() if shape is None else {each.name for each in shape.columns}
        return column in names - masked

    def _refuse_unknown_names(self) -> None:
        names = {
            f"{table.name}.{column.name}"
            for table in self._tables.values()
            for column in table.columns
        }
        # A table that was renamed is not gone: its columns have to be named anew, or they would be plain.
        gone = {name for oid, name in self._lake_names.items() if oid not in self._tables}
        gone -= {each.name for each in self._tables.values()}
        for name in sorted(self._configured.keys() - names):
            if any(name.startswith(f"{table}.") for table in gone):
                log.warning(
                    "columns names %s, whose table is not published any more: take it out.", name
                )
                continue
            raise ConfigurationError(
                f"columns names no published column: {name}.",
                advice="spell it schema.table.column. If the column or its table was renamed, name it by its"
                " new name: changes from before that are masked, too. If it was dropped, take it out of"
                " columns.",
            )

    def _refuse_key(self, table: PublishedTable) -> None:
        key = {*table.key_columns, *table.row_identity.columns}
        for column in table.columns:
            mask = self._now(table, column.name)
            if mask is not None and (column.is_identity or column.name in key):
                refuse_in_key(mask, table.name, column.name)

    def _refuse_changed_in_run(self, table: PublishedTable) -> None:
        """Refuse if a masked column got another name while the run read the source."""
        for column in table.columns:
            place = table.relation_oid, column.attribute_number
            mask = self._now(table, column.name)
            if self._seen.setdefault(place, mask) != mask:
                raise ConfigurationError(
                    "A column with a mask was renamed while the run read its table.",
                    table=table.name,
                    column=column.name,
                    advice="name the column in columns by its new name, and run again; nothing was staged.",
                )

    def _refuse_other_than_lake(self, table: PublishedTable) -> None:
        """Refuse a mask that the lake's rows do not have: they would not fit together.

        :raises ConfigurationError: it says how a copy is made.
        """
        shape = self._shapes.get(table.relation_oid)
        then = {} if shape is None else {each.number: each for each in shape.masks}
        by_name = {} if shape is None else {each.name: each for each in shape.masks}
        known = None if shape is None else {each.number for each in shape.columns} | then.keys()
        for column in table.columns:
            number = column.attribute_number
            before = then.get(number) or (by_name.get(column.name) if 0 in then else None)
            is_new = known is not None and None not in known and number not in known
            if not is_new:
                self._refuse_other(table, column, before)

    def _refuse_other(
        self, table: PublishedTable, column: PublishedColumn, before: MaskedColumn | None
    ) -> None:
        """Refuse a column that has another mask than before."""
        mask = self._now(table, column.name)
        wanted = None if mask is None else self.recorded(mask)
        found = None if before is None else before.mask
        if wanted == found:
            return
        raise ConfigurationError(
            _other_mask(found, wanted, before, column.name),
            table=table.name,
            column=column.name,
            advice=_WITHOUT_NAME.format(f"{table.name}.{column.name}", found.partition(" ")[0])
            if found is not None and wanted is None
            else _WITH_A_COPY.format(table.name),
        )

    def _refuse_other_by_name(self, table: PublishedTable, shape: Shape) -> None:
        """Refuse masks of a table that was made again, here or on another system.

        The lake knows its columns by their names only: their numbers are new.

        :raises ConfigurationError: a column has another mask than the lake's column of that name. Or the lake
            does not know a column, and it may be a masked one that got another name.
        """
        masks = {each.name: each for each in shape.masks}
        known = masks.keys() | {each.name for each in shape.columns}
        lost = sorted(masks.keys() - {each.name for each in table.columns})
        for column in table.columns:
            if column.name in known:
                self._refuse_other(table, column, masks.get(column.name))
            elif lost and self._now(table, column.name) is None:
                raise ConfigurationError(
                    f"The lake does not know the column, and the table was made again without {lost[0]},"
                    f" which is {in_words(masks[lost[0]].mask)} in the lake. It may be that column.",
                    table=table.name,
                    column=column.name,
                    advice=_WITHOUT_NAME.format(
                        f"{table.name}.{column.name}", masks[lost[0]].mask.partition(" ")[0]
                    ),
                )

    def _refuse_unknown(self, table: PublishedTable) -> None:
        """Refuse a table that the lake does not know, if the new system lacks one that has masks in the lake.

        :raises ConfigurationError: it may be that table under another name.
        """
        lost = lost_tables(
            self._tables.values(),
            self._shapes_by_name,
            {name for name, shape in self._shapes_by_name.items() if shape.masks},
            {name.rpartition(".")[0] for name in self._configured},
        )
        if lost:
            raise ConfigurationError(
                f"The lake does not know the table, and this system does not publish {lost[0]}, which has"
                " masks in the lake. It may be that table under another name.",
                table=table.name,
                advice="if it is, name its columns in columns. If it is not, name it:"
                f" copy_tables=[{table.name!r}].",
            )


def lost_tables(
    published: Iterable[PublishedTable],
    in_lake: Collection[str],
    cared_for: Collection[str],
    configured: Collection[str],
) -> list[str]:
    """Tables that have masks or a filter in the lake, and may be published under names that nobody gave.

    Example: the lake's ``users`` has masks, and the new system publishes ``persons``, but no ``users``. If
    the request has masks for ``persons``, that is ``users``, and nothing is lost. If not, ``users`` is lost.

    :param in_lake: names of all tables of the lake.
    :param cared_for: names of those that have masks or a filter there.
    :param configured: names of the tables for which the request has some.
    """
    names = {each.name for each in published}
    lost = sorted(set(cared_for) - names)
    renamed = (names & set(configured)) - set(in_lake)
    return lost if len(lost) > len(renamed) else []


def possible_numbers(
    names: Sequence[str], table: PublishedTable | None, shape: Shape | None
) -> list[set[int] | None]:
    """For each column of a relation, the numbers that it may have by the catalog and by the lake.

    None: neither has a number for its name.

    A relation has its columns in the order of their numbers. So a name that is known, and is in another
    place than its column, is the name of another column. Then some name has an empty set.

    Example: ``email`` is masked and ``nick`` is not. They swapped their names, and swapped them back.
    Both are known, but ``nick`` came before ``email`` for some time.

    :param names: of the relation's columns, in order.
    :param table: as the catalog has it; None: it is not published.
    :param shape: as the lake had it after the last batch; None: the lake does not have it.
    """
    found: list[set[int]] = [set() for _ in names]
    for place, name in enumerate(names):
        if table is not None:
            found[place] |= {e.attribute_number for e in table.columns if e.name == name}
        if shape is not None:
            found[place] |= {e.number for e in shape.columns if e.name == name and e.number}
            found[place] |= {e.number for e in shape.masks if e.name == name and e.number}
    known = [each for each in found if each]
    is_known = [bool(each) for each in found]
    least = 0
    for each in known:
        each.difference_update([number for number in each if number <= least])
        least = min(each, default=least)
    most = max((max(each) for each in known if each), default=0) + 1
    for each in reversed(known):
        each.difference_update([number for number in each if number >= most])
        most = max(each, default=most)
    return [each if is_one else None for each, is_one in zip(found, is_known, strict=True)]


def _other_mask_sealed(
    found: str | None, wanted: str | None, table: str, column: str
) -> ConfigurationError:
    if found is not None and wanted is not None and is_hash(found) and is_hash(wanted):
        return ConfigurationError(
            "An earlier run sealed the next batch, and its hashes have another secret than that of this run.",
            table=table,
            column=column,
            advice="give the earlier secret until that batch is applied, and change it then; or, before the"
            " first apply, drop the slot and empty its folder of the staging area.",
        )
    return ConfigurationError(
        f"An earlier run sealed the next batch, in which the column is {in_words(found)}. The argument"
        f" columns wants it {in_words(wanted)}.",
        table=table,
        column=column,
        advice="apply that batch with the masks that it has, and change the masks then; or, before the first"
        " apply, drop the slot and empty its folder of the staging area.",
    )


def refuse_in_key(mask: Mask, table: str, column: str) -> None:
    """Refuse a mask of a column by which rows are found. Only hashes of different keys are different.

    :raises ConfigurationError: it is no hash.
    """
    if mask.kind != HASH:
        raise ConfigurationError(
            f"The mask {mask.kind!r} does not go with a column of the key or of the replica identity: rows"
            " are found by it.",
            table=table,
            column=column,
            advice="use 'hash'; with REPLICA IDENTITY FULL each column is part of the identity.",
        )


def _other_mask(
    found: str | None, wanted: str | None, before: MaskedColumn | None, column: str
) -> str:
    if before is not None and before.name != column and wanted is None:
        return (
            f"The column was called {before.name} and is {in_words(found)} in the lake, and columns does not"
            " name it by its new name."
        )
    if found is not None and wanted is not None and is_hash(found) and is_hash(wanted):
        return WITH_OTHER_HASHES
    return f"The column is {in_words(found)} in the lake, and columns wants it {in_words(wanted)}."
