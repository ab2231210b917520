"""Random tables, options and rows of a pipeline in this process, judged and verified after each batch.

Tables, statements and what happens on the way to the lake are those of ``tests/chaos``: any types, keys and
partitions, masks, filters, histories, change logs, soft delete. Nothing is killed and no table is altered, so
a program takes seconds. ``tests/chaos/oracle.py`` judges without code of the package.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import psycopg
from pyiceberg.catalog import load_catalog
from pyspark.sql import functions

from airflow_provider_pgoutput.batch.jobs import TableOptions
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.schema.policy import SchemaPolicy
from airflow_provider_pgoutput.capture.stream.options import StreamOptions
from airflow_provider_pgoutput.errors import ConfigurationError
from airflow_provider_pgoutput.lake.checkpoint_rows import record_empty_batch
from airflow_provider_pgoutput.proof.held import complete, hold, release, together
from airflow_provider_pgoutput.proof.verify import verify
from airflow_provider_pgoutput.tasks.received_batch import moves_checkpoint_only
from tests.chaos import options as chaos_options
from tests.chaos import publishing, tables
from tests.chaos.drawing import Drawing
from tests.chaos.in_lake import Way
from tests.chaos.on_the_way import SECRET, OnTheWay
from tests.chaos.oracle import Source, compare, compare_log, read_lake
from tests.chaos.program import ROWS
from tests.conformance.compare import quoted
from tests.conformance.pipeline import CATALOG

if TYPE_CHECKING:
    from airflow_provider_pgoutput.proof.report import Proof
    from airflow_provider_pgoutput.proof.request import ProofRequest
    from tests.chaos.oracle import SourceTable
    from tests.proof.worlds import World

_VERSION = 18
_ODD = 0.03
#: What ``mutate`` may do to a table of the lake.
MUTATIONS = ("lost", "twice", "null", "swapped", "another value")


class RandomProgram:
    """A pipeline with what is drawn for it, and its judge."""

    def __init__(self, world: World, seed: int) -> None:
        self._world, self._pipeline = world, world.pipeline
        self._chance = random.Random(f"proof {seed}")  # noqa: S311 - a test has to repeat itself
        #: What happened, for the report.
        self.found: Counter[str] = Counter()
        #: By name: the LSN of the newest copy.
        self._copied: dict[str, int] = {}
        self._session = psycopg.connect(self._pipeline.conninfo, autocommit=True)
        self._draw_source()
        self._draw_pipeline()

    def close(self) -> None:
        """Disconnect, and let the server forget the slot."""
        self._session.close()
        self._world.sql(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
            f" WHERE slot_name = '{self._pipeline.slot_name}'"
        )

    def _draw_source(self) -> None:
        chance = self._chance
        kinds = [each for each in tables.KINDS if each.name != "columnless"]
        for statement in tables.setup(chance, chance.sample(kinds, chance.randint(2, 4))):
            self._session.execute(statement.encode())
        via_root = chance.random() < 0.6
        draw = self._drawing
        entries = [
            # The server takes the columns of a table for those of its children, too, and refuses other ones.
            publishing.entry(draw, each) if via_root and "family" not in each.name else each.sql
            for each in draw.tables()
            if not each.is_leaf
        ]
        generated = chance.choice(("stored", "none"))
        self._session.execute(
            f"CREATE PUBLICATION p FOR TABLE {', '.join(entries)} WITH (publish_via_partition_root ="
            f" {via_root}, publish_generated_columns = {generated})".encode()
        )
        rows = self._session.execute(
            "SELECT schemaname || '.' || tablename FROM pg_publication_tables ORDER BY 1"
        )
        self._names = [name for (name,) in rows.fetchall()]

    @property
    def _drawing(self) -> Drawing:
        return Drawing(self._session, self._chance, _VERSION, _ODD)

    def _draw_pipeline(self) -> None:
        chance, pipeline = self._chance, self._pipeline
        drawn = self._options = chaos_options.drawn(chance, _VERSION, self._names)
        self._on_the_way = OnTheWay(pipeline.conninfo, ("p",))
        self._on_the_way.draw(chance, self._names, drawn)
        for name in ("type_options", "max_bytes"):
            drawn.stage.pop(name, None)
        if drawn.stage.get("max_changes") == 5:
            # A batch takes seconds, whatever is in it.
            drawn.stage["max_changes"] = 60
        pipeline.capture_options.update(
            drawn.stage,
            options=StreamOptions(**drawn.stream),
            schema_policy=SchemaPolicy(**drawn.policy),
        )
        pipeline.plan_options.update(drawn.plan, on_row_refused="quarantine")
        self._say()

    def _say(self) -> None:
        """Give the pipeline what is drawn of the way."""
        given: dict[str, Any] = self._on_the_way.arguments()
        if given:
            given["mask_secret"] = SECRET.encode()
        self._pipeline.capture_options.update(given)
        options = self._options.tables
        self._pipeline.plan_options["table_options"] = {
            name: TableOptions(**each) for name, each in options.items()
        }
        self.found.update(f"mode {self._mode(each)}" for each in self._names)
        self.found.update(self._on_the_way.words(self._options))

    def _mode(self, table: str) -> str:
        own = self._options.tables.get(table, {})
        return str(own.get("mode") or self._options.plan["mode"])

    def first_run(self) -> None:
        """Copy what is there. A pipeline that is refused goes on without its masks, filters and names."""
        self.work(20)
        try:
            self.run()
        except ConfigurationError as error:
            self.found[f"refused: {type(error).__name__}"] += 1
            self._on_the_way = OnTheWay(self._pipeline.conninfo, ("p",))
            for name in ("columns", "filters", "mask_secret"):
                self._pipeline.capture_options.pop(name, None)
            self._options.tables = {}
            self._options.plan.pop("target_names", None)
            self._pipeline.plan_options.pop("target_names", None)
            self.found.clear()
            self._say()
            self.run()

    def work(self, transactions: int) -> None:
        """Some random transactions. What the server refuses is rolled back."""
        for _ in range(transactions):
            try:
                with self._session.transaction(force_rollback=self._chance.random() < 0.1):
                    for _ in range(self._chance.randint(1, 5)):
                        self._change()
            except psycopg.IntegrityError:
                # A constraint that is checked at the end.
                self.found["transactions refused"] += 1

    def _change(self) -> None:
        draws, weights = list(ROWS.values()), [weight for weight, _ in ROWS.values()]
        ((_, draw),) = self._chance.choices(draws, weights)
        statement = draw(self._drawing)
        if statement is None:
            return
        try:
            with self._session.transaction():
                self._session.execute(statement.encode())
            self.found["statements"] += 1
        except psycopg.DatabaseError:
            self.found["statements refused"] += 1

    def run(self) -> Lsn:
        """Stage a batch and apply it; return its end."""
        batch = self._pipeline.stage()
        for table in batch.manifest.tables:
            if table.copy_lsn is not None:
                self._copied[table.name] = int(Lsn.parse(table.copy_lsn))
        self._plan = self._pipeline.plan(batch)
        before = self._pipeline.checkpoint()
        if before is not None and moves_checkpoint_only(batch.manifest, before):
            # The operator starts no Spark for it, either.
            properties = self._pipeline.catalog_properties
            record_empty_batch(CATALOG, properties, self._plan, batch.manifest)
        else:
            if before is not None:
                self._world.refresh()
            self._pipeline.apply(batch)
        self.found["batches"] += 1
        return batch.manifest.end_lsn

    def catch_up(self) -> None:
        """Until the lake is where the source is now."""
        self._run_to(self._pipeline.flush_lsn())

    def judged(self) -> dict[str, bool | None]:
        """By table: whether the judge finds it equal; None: it can only say that it found no fault."""
        catalog = load_catalog(CATALOG, **self._pipeline.catalog_properties)
        source = Source(self._pipeline.conninfo, {}, self._way)
        try:
            return {
                each.full_name: self._judged(catalog, each)
                for each in source.tables(("p",))
                if each.columns
            }
        finally:
            source.close()
            catalog.close()

    def _judged(self, catalog: Any, table: SourceTable) -> bool | None:
        lake = read_lake(
            catalog.load_table((self._pipeline.namespace, self._target(table.full_name)))
        )
        if self._mode(table.full_name) != "change_log":
            return compare(table, lake) is None
        is_wrong = compare_log(table, lake, self._copied[table.full_name])
        return False if is_wrong else None

    def _way(self, table: str) -> Way:
        said, own = self._on_the_way, self._options.tables.get(table, {})
        masks = {
            name.removeprefix(f"{table}."): word
            for name, word in said.columns.items()
            if name.startswith(f"{table}.")
        }
        names, constants = own.get("renamed_columns", {}), own.get("constant_columns", {})
        return Way(masks, SECRET, said.filters.get(table, ""), names, constants)

    def _target(self, table: str) -> str:
        return self._plan.target_name(*table.split(".", 1))

    def verify(self, transactions: int = 0, **more: Any) -> Proof:
        """Verify, while the pipeline goes on.

        :param transactions: how many the source commits meanwhile.
        :param more: arguments of the verification.
        """

        def wait(lsn: Lsn) -> None:
            self.work(transactions)
            self._run_to(lsn)

        self.found["verifications"] += 1
        return verify(self._request(**more), wait)

    def verify_held(self) -> Proof:
        """Verify by totals that are held until the lake has reached the LSN."""
        request = self._request()
        held = hold(request)
        self._run_to(held.lsn)
        release(request, held)
        found, rest = complete(request, held)
        self.found["verifications"] += 1
        left = verify(request, self._run_to, relation_oids=rest) if rest else None
        return together(found, left)

    def _run_to(self, lsn: Lsn) -> None:
        while self.run() < lsn:
            pass

    def _request(self, **more: Any) -> ProofRequest:
        return self._world.request(mask_secret=SECRET.encode(), **more)

    def disagreements(self, judged: dict[str, bool | None], proof: Proof) -> list[str]:
        """Where judge and verification say other things."""
        found = []
        for each in proof.tables:
            says = judged.get(each.table)
            if each.not_compared is not None:
                self.found["tables not compared"] += 1
                continue
            self.found[f"tables {'equal' if each.is_equal else 'different'}"] += 1
            if says is True and not each.is_equal:
                found.append(f"the judge finds it equal: {each}")
            elif says is False and each.is_equal and not each.columns_left_out:
                found.append(f"the judge finds other rows: {each}")
        return found

    def mutate(self) -> dict[str, str]:
        """Change something in each table of the lake that is no change log; what, by table."""
        source = Source(self._pipeline.conninfo, {}, self._way)
        try:
            found = list(source.tables(("p",)))
        finally:
            source.close()
        done = {}
        for table in found:
            columns = [each.name for each in table.columns if each.mask != "null"]
            columns = [each for each in columns if each not in self._way(table.full_name).constants]
            if columns and self._mode(table.full_name) != "change_log":
                what = self._mutate(self._target(table.full_name), columns)
                if what is not None:
                    done[table.full_name] = what
        return done

    def _mutate(self, target: str, columns: list[str]) -> str | None:
        spark, chance = self._pipeline.spark, self._chance
        name = quoted("lake", self._pipeline.namespace, target)
        self._world.refresh()
        frame = spark.table(name)
        rows = [list(each) for each in frame.collect()]
        if not rows:
            return None
        what, column = chance.choice(MUTATIONS), frame.columns.index(chance.choice(columns))
        one, two = chance.randrange(len(rows)), chance.randrange(len(rows))
        if what == "lost":
            del rows[one]
        elif what == "twice":
            rows.append(rows[one])
        elif what == "null":
            rows[one][column] = None
        elif what == "swapped":
            rows[one][column], rows[two][column] = rows[two][column], rows[one][column]
        else:
            rows[one][column] = rows[two][column]
        made = spark.createDataFrame(rows, frame.schema, verifySchema=False)
        made.writeTo(name).overwrite(functions.lit(True))
        return f"{what}: {frame.columns[column]}"
