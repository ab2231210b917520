"""The operator that proves that the lake equals the source at one LSN."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import AssetAlias, BaseOperator

from airflow_provider_pgoutput.airflow_versions import conf
from airflow_provider_pgoutput.batch.answers import FAIL
from airflow_provider_pgoutput.errors import LakeDiffers
from airflow_provider_pgoutput.hooks import default_connections
from airflow_provider_pgoutput.hooks.connections import get_connection, secret_of
from airflow_provider_pgoutput.proof.request import FULL, SERVER
from airflow_provider_pgoutput.tasks import arguments
from airflow_provider_pgoutput.tasks.lake import Lake
from airflow_provider_pgoutput.tasks.outcome import airflow_outcome
from airflow_provider_pgoutput.tasks.proof_event import ALIAS, tell_difference, tell_proof
from airflow_provider_pgoutput.tasks.task_run import refuse_backfill

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context

    from airflow_provider_pgoutput.proof.held import HeldTotals
    from airflow_provider_pgoutput.proof.report import Proof
    from airflow_provider_pgoutput.proof.request import ProofRequest
    from airflow_provider_pgoutput.spark_submit.hash_engine import SparkHash

#: Tables that the log names.
_MOST_LINES = 50


class PgoutputVerifyOperator(BaseOperator):
    """Compare tables of the lake with the source as both were at one LSN.

    It runs beside the pipeline, in a DAG of its own and as often as wanted. A mark in the staging area asks
    the pipeline to end a batch at the LSN. So the pipeline has to run meanwhile: the task waits for it.
    All arguments but ``deferrable`` are templated.

    If the task succeeds, it makes an event of the asset ``pgoutput-proof://host:port/database/slot``. It
    adds the asset through the alias ``pgoutput_proof``. If it fails because a table differs, it leaves the
    same facts in XCom; see ``docs/reference/events.md``.

    **Source and lake**

    :param slot_name: the pipeline's replication slot.
    :param publication_names: the pipeline's publications.
    :param staging_uri: the pipeline's staging area. The mark is left there.
    :param namespace: namespace of the Iceberg tables. It also gets the table ``pgoutput_proofs``.
    :param postgres_conn_id: the source, a connection of type ``postgres``. The role needs what it needs for a
        copy.
    :param iceberg_conn_id: the lake's catalog, a connection of type ``iceberg``.
    :param catalog_name: name of the catalog; None: the name of its connection.
    :param mask_conn_id: the pipeline's connection whose password is the secret of hashed columns; None:
        hashed columns are not compared.

    **What is compared and reported**

    :param tables: tables of the source as ``schema.table``; empty: all published tables.
    :param share: each run compares only the next part of each table, which has about so much of its keys.
        With ``0.01`` a hundred runs compare all of them. The part after the last one is the first again.
        ``1``: each run compares whole tables.
    :param keys_shown: how many keys of rows that differ the log, XCom and ``pgoutput_proofs`` name, for each
        table. Keys may be personal data.
    :param wait_seconds: the longest wait until the lake has reached the LSN, and until a run of the pipeline
        has taken up a repair.
    :param on_difference: ``fail``: the task fails if a table differs, or if it could compare none.
        ``succeed``: log, XCom and ``pgoutput_proofs`` say it. ``repair``: a run of the pipeline reads the
        rows that differ from the source again, and the tables are verified once more. The task fails if
        one still differs, or cannot be repaired.
    :param method: ``full``: all rows of both sides are read. ``auto``: only what changed since the last
        verification is read, if the server keeps WAL summaries (PostgreSQL 17 or later with
        ``summarize_wal``). All rows are compared nevertheless; see ``docs/how-to/verify.md``.
    :param full_every: with ``auto``, every so many verifications of a table all of it is read.
    :param hash_function: ``server``: PostgreSQL's own hash functions make the digests. If the server computes
        other numbers than PostgreSQL, md5 makes them. ``md5``: md5 makes them always. That takes more time.

    **The wait**

    :param deferrable: wait for the pipeline in the triggerer instead of a worker. The default is Airflow's
        setting ``[operators] default_deferrable``. Tables that turn out to differ are compared once more
        then, in a worker that waits. With ``share`` or ``method="auto"`` the task waits in the worker.

    **Large tables on Spark**

    :param spark_from_bytes: a Spark job hashes the lake's files of a table if these take at least so many
        bytes; None: this task hashes all files.
    :param spark_conn_id: the Spark cluster of the job, a connection of type ``spark``.
    :param spark_conf: Spark configuration of the job. It appears on a command line, so do not put secrets in
        it.
    """

    ui_color = "#d0f5e0"

    postgres_conn_id: str
    iceberg_conn_id: str
    catalog_name: str | None
    mask_conn_id: str | None
    spark_from_bytes: int | str | None
    spark_conn_id: str
    spark_conf: Mapping[str, Any] | str | None

    def __init__(
        self,
        *,
        slot_name: str,
        publication_names: str | Sequence[str],
        staging_uri: str,
        namespace: str,
        postgres_conn_id: str = default_connections.POSTGRES,
        iceberg_conn_id: str = default_connections.ICEBERG,
        catalog_name: str | None = None,
        mask_conn_id: str | None = None,
        tables: str | Sequence[str] | None = None,
        share: float | str = 1.0,
        keys_shown: int | str = 0,
        wait_seconds: float | str = 3600,
        on_difference: str = FAIL,
        method: str = FULL,
        full_every: int | str = 10,
        hash_function: str = SERVER,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        spark_from_bytes: int | str | None = None,
        spark_conn_id: str = default_connections.SPARK,
        spark_conf: Mapping[str, Any] | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if AssetAlias(ALIAS) not in self.outlets:
            self.outlets = [*self.outlets, AssetAlias(ALIAS)]
        arguments.keep(self, locals(), PgoutputVerifyOperator.template_fields)
        self.deferrable = deferrable
        arguments.check_answers(self)
        self._spark_hash: SparkHash | None = None

    template_fields: Sequence[str] = tuple(
        each for each in arguments.templated_of(__init__) if each != "deferrable"
    )
    template_fields_renderers = arguments.renderers_of(__init__)

    def execute(self, context: Context) -> dict[str, Any]:
        """Verify. Return the ``lsn``, and for each table what ``pgoutput_proofs`` gets.

        Of more than 200 tables those come first that are not proven. ``tables_left_out`` counts the others.
        ``after_repair`` has the same of the tables that were repaired.
        """
        with airflow_outcome(context):
            refuse_backfill(context)
            from airflow_provider_pgoutput.proof.held import can_hold, hold
            from airflow_provider_pgoutput.proof.verify import verify

            request = self._request()
            held = hold(request) if self.deferrable and can_hold(request) else None
            if held is None:
                proof = verify(request)
                self._tell(request, proof, context)
        if held is not None:
            self._defer(request, held)
        return self._finish(request, proof, context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Go on after the wait. Return what ``execute`` returns.

        :param event: of the trigger, with what is kept of the source.
        """
        with airflow_outcome(context):
            from airflow_provider_pgoutput.proof.comparison import BatchSpansLsn
            from airflow_provider_pgoutput.proof.held import (
                HeldTotals,
                complete,
                hold,
                release,
                together,
            )
            from airflow_provider_pgoutput.proof.verify import refuse_more_lsns, verify

            request, kept = self._request(), HeldTotals.from_body(event["held"])
            again = None
            if kept is None:
                self.log.info(
                    "Another version of the package began to wait. The verification begins anew."
                )
                again = hold(request)
            else:
                release(request, kept)
                try:
                    first, rest = complete(request, kept)
                except BatchSpansLsn as spans:
                    refuse_more_lsns(request, kept.lsns, spans)
                    again = hold(request, kept.lsns + 1)
                else:
                    if first.tables:
                        self._tell(request, first, context)
                    second = verify(request, relation_oids=rest) if rest else None
                    if second is not None:
                        self._tell(request, second, context)
                    proof = together(first, second)
        if again is not None:
            self._defer(request, again)
        return self._finish(request, proof, context)

    def _defer(self, request: ProofRequest, held: HeldTotals) -> NoReturn:
        """Wait in the triggerer. The task goes on in ``execute_complete``."""
        from airflow_provider_pgoutput.triggers.lake import PgoutputLakeTrigger

        self.log.info("Waiting for a run of the pipeline that brings the lake to LSN %s.", held.lsn)
        trigger = PgoutputLakeTrigger(
            lsn=str(held.lsn),
            slot_name=request.slot_name,
            namespace=request.namespace,
            iceberg_conn_id=self.iceberg_conn_id,
            catalog_name=arguments.optional_text(self.catalog_name),
            until=held.until,
            held=held.to_body(),
        )
        self.defer(trigger=trigger, method_name="execute_complete")

    def _finish(self, request: ProofRequest, proof: Proof, context: Context) -> dict[str, Any]:
        """Repair what differs, if it is asked for. Fail if something still differs."""
        with airflow_outcome(context):
            from airflow_provider_pgoutput.proof.record import proof_xcom
            from airflow_provider_pgoutput.proof.repair import after_repair, repair
            from airflow_provider_pgoutput.proof.verify import refuse_differences

            connection = get_connection(self.postgres_conn_id)
            final, found = proof, proof_xcom(proof)
            try:
                if (repaired := repair(request, proof)) is not None:
                    self._tell(request, repaired, context)
                    found["after_repair"] = proof_xcom(repaired)
                    final = after_repair(proof, repaired)
                refuse_differences(request, final)
            except LakeDiffers:
                tell_difference(context, connection, final, found)
                raise
        tell_proof(context, connection, final)
        return found

    def _tell(self, request: ProofRequest, proof: Proof, context: Context) -> None:
        """Log and record what a verification found."""
        from airflow_provider_pgoutput.lake.state import open_catalog
        from airflow_provider_pgoutput.proof.record import record_proof, shown_first

        for each in shown_first(proof)[:_MOST_LINES]:
            self.log.log(each.level, "%s", each)
        if (more := len(proof.tables) - _MOST_LINES) > 0:
            self.log.info("%d more tables are in pgoutput_proofs.", more)
        self.log.info("%s", proof)
        catalog = open_catalog(request.catalog_name, request.catalog_properties)
        record_proof(
            catalog,
            request.namespace,
            proof,
            dag_id=context["dag_run"].dag_id,
            run_id=context["dag_run"].run_id,
        )

    def _request(self) -> ProofRequest:
        from airflow_provider_pgoutput.hooks.pgoutput import PgoutputHook
        from airflow_provider_pgoutput.proof.request import ProofRequest

        # The connection gives the name of the catalog if the argument does not.
        own = set(self.template_fields) - {"catalog_name"}
        fields = arguments.values_of(self, own, ProofRequest)
        source = PgoutputHook(self.postgres_conn_id)
        direct = source.direct()
        lake = Lake.of(self)
        self._spark_hash = self._hash_engine()
        return ProofRequest(
            conninfo=source.session_parameters(),
            direct_conninfo=None if direct is source else direct.session_parameters(),
            catalog_name=lake.catalog.name,
            catalog_properties=lake.catalog.pyiceberg_properties,
            mask_secret=secret_of(arguments.optional_text(self.mask_conn_id)),
            hash_engine=self._spark_hash,
            **fields,
        )

    def _hash_engine(self) -> SparkHash | None:
        """What hashes the files of large tables; None: this task does.

        :raises ConfigurationError: an argument has a wrong value.
        """
        from airflow_provider_pgoutput.spark_submit.hash_engine import SparkHash

        least = arguments.whole_number(self.spark_from_bytes, "spark_from_bytes")
        if least is None:
            return None
        conn_id = arguments.required_text(self.spark_conn_id, "spark_conn_id")
        # Without this check an unknown connection would silently become the master "yarn".
        get_connection(conn_id)
        conf = arguments.mapping(self.spark_conf, "spark_conf")
        return SparkHash(conn_id, least, conf, f"airflow-{self.dag_id}-{self.task_id}-hash")

    def on_kill(self) -> None:
        """Stop the Spark job, if there is one."""
        if self._spark_hash is not None:
            self._spark_hash.stop()
