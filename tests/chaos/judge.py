"""Judges a pipeline that has caught up with its source, and says which tables may differ and why.

A table may differ where the documentation says that nobody can know better: a warning named it, or the
program did what is documented to be in no stream. Such a table is copied again, and has to be equal then.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError

from tests.chaos.histories import wrong_versions
from tests.chaos.in_lake import Way
from tests.chaos.on_the_way import SECRET
from tests.chaos.oracle import Source, compare, compare_log, read_lake, rows_of, without

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.chaos.oracle import Difference, LakeRows, SourceTable
    from tests.chaos.pipeline import Pipeline
    from tests.chaos.program import Program

#: Warnings that say that a table of the lake is not, or may not be, what the source has.
_TOLD = re.compile(
    "|".join(
        (
            "what older rows show in the added column",
            "whether .* kept its values or is a new column of that name",
            "was renamed, older values stay under its old name",
            "PostgreSQL sends nothing of the rows that it converted",
            "PostgreSQL sends no row for that",
            "the publications lacked .*Name it in copy_tables",
            "got partitions that were tables of their own",
            "were detached or dropped. PostgreSQL sends no deletes",
            "these rows have NULL in the lake",
            "no earlier batch says which primary key",
            "left the publications and another one that is copied has its name",
            "are left out: the lake does not have the table",
            "left out until copy_tables names them",
            "what was written to the table before that is not in the stream",
            "its changes from LSN .* are passed over",
            "The stream does not tell what older rows have in it",
        )
    ),
    re.DOTALL,
)
#: What no warning may say: then something was wrong, though the run went on.
_WRONG = re.compile("broke the protocol")
#: After these a table may have another key than before. Then a history may have two versions of one key at
#: once.
_OTHER_KEYS = ("change key", "change identity", "rename key", "replace column", "drop column")
#: After these the entries of one row may not be told any more. Then a log has no view.
_UNCLEAR = (*_OTHER_KEYS, "swap columns", "rename column", "recreate table", "drop table")
_RELATION_OID = "pgoutput.relation-oid"
_BRANCH = "pgoutput_"


@dataclass
class Verdict:
    """What a comparison found."""

    tables: int = 0
    rows: int = 0
    #: Views that were compared.
    views: int = 0
    #: What must not be.
    faults: list[str] = field(default_factory=list)
    #: Tables that differ for a reason that was told: their names at the source, and the reasons.
    excused: dict[str, str] = field(default_factory=dict)
    #: Tables whose rows are those of the source.
    equal: set[str] = field(default_factory=set)
    #: Tables whose rows differ, and not only their columns.
    other_rows: set[str] = field(default_factory=set)


class Judge:
    """Compares the tables of one pipeline."""

    def __init__(self, pipeline: Pipeline, program: Program) -> None:
        self._pipeline, self._program = pipeline, program

    def compare(self, *, excuses: bool) -> Verdict:
        """Compare every published table.

        :param excuses: whether a table may differ for a reason; else nothing may.
        """
        verdict = Verdict()
        pipeline = self._pipeline
        catalog = load_catalog("lake", **pipeline.catalog_properties)
        choices = pipeline.options.stage.get("type_options", {})
        source = Source(pipeline.conninfo, choices, self._way)
        try:
            for table in source.tables(pipeline.publications):
                if not table.columns:
                    continue
                verdict.tables += 1
                verdict.rows += table.rows.total()
                lake = self._lake(catalog, table)
                way = self._way(table.full_name)
                if lake is not None and way.is_shared:
                    lake = lake.only(way.constants)
                self._compare(table, lake, verdict, excuses=excuses)
        finally:
            source.close()
            catalog.close()
        verdict.faults += pipeline.watch.faults
        verdict.faults += [each for each in pipeline.warnings if _WRONG.search(each)]
        return verdict

    def _way(self, table: str) -> Way:
        """What happens to the rows of a table on the way.

        :param table: ``schema.table``.
        """
        said, plan = self._pipeline.on_the_way, self._pipeline.options.plan
        options = self._pipeline.options.tables.get(table, {})
        start = f"{table}."
        masks = {
            name.removeprefix(start): word
            for name, word in said.columns.items()
            if name.startswith(start)
        }
        of_slice = [
            found.groupdict()
            for pattern in plan.get("shared_names", {})
            if (found := re.fullmatch(pattern, table))
        ]
        return Way(
            masks,
            SECRET,
            said.filters.get(table, ""),
            options.get("renamed_columns", {}),
            {**(of_slice[0] if of_slice else {}), **options.get("constant_columns", {})},
            is_shared=bool(of_slice or options.get("shared")),
        )

    def _lake(self, catalog: Any, table: SourceTable) -> LakeRows | None:
        namespace = self._pipeline.namespace
        target = self._pipeline.plan().target_name(table.schema, table.name)
        try:
            return read_lake(catalog.load_table((namespace, target)))
        except NoSuchTableError:
            # A table that was renamed has its former name in the lake until something of it changes.
            tables = (catalog.load_table(each) for each in catalog.list_tables(namespace))
            former = [
                each for each in tables if each.properties.get(_RELATION_OID) == str(table.oid)
            ]
            return read_lake(former[0]) if former else None

    def _compare(
        self, table: SourceTable, lake: LakeRows | None, verdict: Verdict, *, excuses: bool
    ) -> None:
        if lake is None:
            found = "there is no table in the lake"
            reasons = dict(self._reasons(table)) if excuses else {}
            if reasons:
                verdict.excused[table.full_name] = f"{found}: {sorted(set(reasons.values()))}"
            else:
                verdict.faults.append(f"{table.full_name}: {found}")
            return
        mode = self._pipeline.targets.mode(table.full_name)
        if mode == "history":
            by_key = not any(self._program.done[each] for each in _OTHER_KEYS)
            faults = wrong_versions(table, lake, by_key=by_key)
            verdict.faults += [f"{table.full_name}, history: {each}" for each in faults]
        if mode == "change_log":
            self._compare_log(table, lake, verdict, excuses=excuses)
            return
        difference = compare(table, lake)
        is_incomplete = table.full_name in self._pipeline.incomplete
        if difference is None:
            verdict.equal.add(table.full_name)
            return
        if is_incomplete and difference.only_lacks_rows:
            # It was copied, so only rows whose key the lake's type cannot hold are missing.
            return
        if difference.about_rows:
            verdict.other_rows.add(table.full_name)
        reason = self._reason(difference, lake) if excuses else None
        if reason is None:
            verdict.faults.append(f"{table.full_name}: {difference.text}")
        else:
            verdict.excused[table.full_name] = reason

    def _compare_log(
        self, table: SourceTable, lake: LakeRows, verdict: Verdict, *, excuses: bool
    ) -> None:
        copied = self._pipeline.copied.get(table.full_name, 0)
        for fault in compare_log(table, lake, copied):
            reasons = dict(self._reasons(table)) if excuses and not fault.startswith("I3") else {}
            if reasons:
                verdict.excused[table.full_name] = f"log: {sorted(set(reasons.values()))}"
            else:
                verdict.faults.append(f"{table.full_name}, change log: {fault}")
        if self._pipeline.options.plan.get("current_views"):
            self._compare_view(table, lake, verdict, excuses=excuses)

    def _compare_view(
        self, table: SourceTable, lake: LakeRows, verdict: Verdict, *, excuses: bool
    ) -> None:
        """The view of a change log shows the rows of the source."""
        target = self._pipeline.plan().target_name(table.schema, table.name)
        arrow = self._pipeline.view_of(target)
        if arrow is None:
            if table.key and not any(self._program.done[each] for each in _UNCLEAR):
                verdict.faults.append(f"{table.full_name}: the change log has no view")
            return
        way = self._way(table.full_name)
        shown = rows_of(arrow, lake.types)
        difference = compare(table, shown.only(way.constants) if way.is_shared else shown)
        verdict.views += 1
        if difference is None:
            return
        reason = self._reason(difference, shown) if excuses else None
        if reason is None:
            verdict.faults.append(f"{table.full_name}, its view: {difference.text}")
        else:
            verdict.excused[table.full_name] = f"view: {reason}"

    def _reason(self, difference: Difference, lake: LakeRows) -> str | None:
        """Why a table may differ; None: it may not."""
        reasons = dict(self._reasons(difference.table))
        for each in difference.table.columns:
            if any(name.startswith(f"{each.name}__old") for name in lake.types):
                # ``keep_retyped_columns``: rows that were not written since have NULL in the new column.
                reasons.setdefault(
                    each.name, "documented: the old values are in a column of their own"
                )
        if "*" in reasons:
            return reasons["*"]
        if reasons and without(difference, lake, frozenset(reasons)):
            return "; ".join(f"{name}: {why}" for name, why in sorted(reasons.items()))
        return None

    def _reasons(self, table: SourceTable) -> Iterator[tuple[str, str]]:
        """Names in the lake of columns that may differ, ``*``: all, each with the reason."""
        names = {each.source_name: each.name for each in table.columns}
        for column, why in self._reasons_at_source(table):
            yield names.get(column, column), why

    def _reasons_at_source(self, table: SourceTable) -> Iterator[tuple[str, str]]:
        for each in self._program.silent:
            if each.table == table.oid:
                yield each.column, f"documented: {each.operation}"
        if table.oid not in self._program.announced:
            yield "*", "documented: no row of it changed since"
        if self._leaves_out(table):
            yield "*", "a publication leaves operations out"
        yield from self._warned(table)

    def _warned(self, table: SourceTable) -> Iterator[tuple[str, str]]:
        for message in self._pipeline.warnings:
            if _TOLD.search(message) and re.search(
                rf"(?<!\w){re.escape(table.full_name)}(?!\w)", message
            ):
                named = [
                    each.source_name
                    for each in table.columns
                    if re.search(
                        rf"\b{re.escape(each.source_name)}\b", message.replace(table.full_name, "")
                    )
                ]
                for name in named or ["*"]:
                    yield name, f"warned: {_pattern(message, table)}"
            for publication in table.publications:
                if re.search(rf"Publication {publication} (was altered|does not publish)", message):
                    yield "*", "warned: a publication left operations out"

    def _leaves_out(self, table: SourceTable) -> bool:
        with psycopg.connect(self._pipeline.conninfo) as session:
            row = session.execute(
                "SELECT bool_or(NOT (pubinsert AND pubupdate AND pubdelete AND pubtruncate))"
                " FROM pg_publication WHERE pubname = ANY (%s)",
                (list(table.publications),),
            ).fetchone()
        return bool(row and row[0])

    def left_branches(self) -> list[str]:
        """Branches of attempts that nobody goes on with (I7).

        The branches of a batch that was given up are removed when they are a day old.
        """
        given_up = tuple(f"{_BRANCH}{each}_" for each in self._pipeline.given_up)
        catalog = load_catalog("lake", **self._pipeline.catalog_properties)
        try:
            return [
                f"{identifier[-1]}.{name}"
                for identifier in catalog.list_tables(self._pipeline.namespace)
                for name, reference in catalog.load_table(identifier).metadata.refs.items()
                if reference.snapshot_ref_type == "branch"
                and name.startswith(_BRANCH)
                and not name.startswith(given_up)
            ]
        finally:
            catalog.close()


def _pattern(message: str, table: SourceTable) -> str:
    """A message without names and numbers, for counting."""
    text = message.replace(table.full_name, "<table>")
    return re.sub(r"\b(c\d+|\d+)\b", "_", text)[:110]
