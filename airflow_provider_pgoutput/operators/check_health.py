"""The operator that fails when a pipeline passes a limit, so that Airflow's alerts fire."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_provider_pgoutput.batch.answers import FAIL
from airflow_provider_pgoutput.batch.checkpoint import REBUILT
from airflow_provider_pgoutput.errors import ConfigurationError, LimitPassed, PgoutputError
from airflow_provider_pgoutput.hooks import default_connections
from airflow_provider_pgoutput.hooks.pgoutput import PgoutputHook
from airflow_provider_pgoutput.tasks import arguments, metrics
from airflow_provider_pgoutput.tasks.lake import Lake
from airflow_provider_pgoutput.tasks.outcome import airflow_outcome
from airflow_provider_pgoutput.tasks.task_run import few

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from airflow.sdk import Context

    from airflow_provider_pgoutput.capture.slot.facts import SlotStatus
    from airflow_provider_pgoutput.lake.state import Recorded
    from airflow_provider_pgoutput.proof.record import NewestProof


class PgoutputCheckHealthOperator(BaseOperator):
    """Fail if the source keeps too much WAL, the lake is too old, or the proof of a table is too old.

    Put it into a DAG of its own. So it also fires while the pipeline's DAG is paused, or one of its tasks
    hangs. It changes nothing. It also fails if the slot is lost or does not exist, or if the newest
    verification of a table found a difference.

    :param slot_name: the replication slot. (templated)
    :param namespace: namespace of the Iceberg tables. It also holds the checkpoint. (templated)
    :param max_retained_bytes: fail if the server keeps more bytes of WAL for the slot; None: no limit.
        (templated)
    :param max_age: fail if the lake lacks changes that are older, as ``timedelta`` or in seconds; None: no
        limit. If the source has written nothing that the lake lacks, no age counts. (templated)
    :param max_proof_age: fail if a table was last verified longer ago, as ``timedelta`` or in seconds; None:
        no limit. With ``share`` a table counts when each part of a cycle was compared, and as old as the
        oldest of them. Tables that were never compared do not count. (templated)
    :param on_limit_passed: ``fail``: the task fails. ``warn``: the log has a warning, and the task succeeds.
        A lost slot fails it in any case. (templated)
    :param postgres_conn_id: the source, a connection of type ``postgres``. (templated)
    :param iceberg_conn_id: the lake's catalog, a connection of type ``iceberg``. (templated)
    :param catalog_name: name of the catalog; None: the name of its connection. (templated)
    """

    ui_color = "#f5d0d0"

    max_retained_bytes: int | str | None
    max_age: timedelta | float | str | None
    max_proof_age: timedelta | float | str | None
    on_limit_passed: str
    postgres_conn_id: str

    def __init__(
        self,
        *,
        slot_name: str,
        namespace: str,
        max_retained_bytes: int | str | None = None,
        max_age: timedelta | float | str | None = None,
        max_proof_age: timedelta | float | str | None = None,
        on_limit_passed: str = FAIL,
        postgres_conn_id: str = default_connections.POSTGRES,
        iceberg_conn_id: str = default_connections.ICEBERG,
        catalog_name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        arguments.keep(self, locals(), PgoutputCheckHealthOperator.template_fields)
        arguments.check_answers(self)

    template_fields: Sequence[str] = arguments.templated_of(__init__)

    def execute(self, context: Context) -> dict[str, Any]:
        """Look at the slot, the checkpoint table and the record of verifications.

        :returns: ``retained_bytes``, ``age_seconds`` and ``proof_age_seconds``. None: it is not known. The
            lake has every change that is older than ``age_seconds``, except in tables that are set aside.
        """
        with airflow_outcome(context):
            slot_name = arguments.slot_name(self)
            answer = arguments.answer(self.on_limit_passed, "on_limit_passed")
            seen: dict[str, Any] = {}
            status = PgoutputHook(self.postgres_conn_id).direct().slot(slot_name)
            passed = list(self._of_slot(status, seen))
            # Told first: WAL also grows while the lake does not answer.
            metrics.send(slot_name, {metrics.RETAINED_BYTES: seen["retained_bytes"]})
            try:
                passed += self._of_lake(slot_name, status, seen)
            except PgoutputError as error:
                if not passed:
                    raise
                passed.append(f"The lake was not looked at: {type(error).__name__}.")
            numbers = {
                metrics.FRESHNESS_SECONDS: seen.get("age_seconds"),
                metrics.PROOF_AGE_SECONDS: seen.get("proof_age_seconds"),
            }
            metrics.send(slot_name, numbers)
            if passed and answer == FAIL:
                raise LimitPassed(
                    " ".join(passed),
                    slot=slot_name,
                    advice="see why the pipeline's runs fail or wait (pgoutput doctor compares both sides),"
                    " or verify the lake (docs/how-to/verify.md).",
                )
            for each in passed:
                self.log.warning("Slot %s: %s", slot_name, each)
            if not passed:
                self.log.info("Slot %s is within all limits. %s", slot_name, _seen_in_words(seen))
        return seen

    def _of_slot(self, status: SlotStatus, seen: dict[str, Any]) -> Iterator[str]:
        """What is wrong with the slot, a sentence for each.

        :param seen: gets ``retained_bytes``.
        :raises SlotLost: the server removed WAL that the slot needed.
        """
        status.check()
        kept_from = status.slot.restart_lsn if status.slot is not None else None
        retained = None if kept_from is None else max(status.current_lsn - kept_from, 0)
        seen["retained_bytes"] = retained
        if status.slot is None:
            yield "The slot does not exist."
        limit = arguments.whole_number(self.max_retained_bytes, "max_retained_bytes")
        if limit is not None and retained is not None and retained > limit:
            yield f"The server keeps {retained:,} bytes of WAL for it; the limit is {limit:,}."

    def _of_lake(self, slot_name: str, status: SlotStatus, seen: dict[str, Any]) -> Iterator[str]:
        """What is wrong with the lake.

        :param seen: gets ``age_seconds`` and ``proof_age_seconds``.
        """
        from airflow_provider_pgoutput.lake.state import (
            names_of_tables,
            open_catalog,
            read_recorded,
        )
        from airflow_provider_pgoutput.proof.record import newest_proofs

        lake = Lake.of(self)
        catalog = open_catalog(lake.catalog.name, lake.catalog.pyiceberg_properties)
        recorded = read_recorded(catalog, lake.namespace, slot_name)
        yield from self._of_batches(recorded, status, seen)
        proofs = newest_proofs(catalog, lake.namespace, slot_name, names_of_tables(recorded))
        yield from self._of_proofs(proofs, seen)

    def _of_batches(
        self, recorded: Iterable[Recorded], status: SlotStatus, seen: dict[str, Any]
    ) -> Iterator[str]:
        batches = [row for row in recorded if row.table_name is None]
        if any(_has_all(status, row) for row in batches):
            age: float | None = 0.0
        else:
            # A table of an early version of the package does not say up to when the lake has all. A replay
            # writes batches once more, so the newest row is not always the last one.
            times = [row.complete_until for row in batches if row.complete_until]
            # When a rebuilt checkpoint was written says nothing.
            applied = [e.applied_at for e in batches if e.applied_at and e.batch_id != REBUILT]
            age = _age_seconds(max(times or applied, default=None))
        seen["age_seconds"] = age
        limit = _seconds(self.max_age, "max_age")
        if limit is None:
            return
        if age is None:
            yield "It is not known how old the lake is." if batches else "No batch was applied yet."
        elif age > limit:
            yield f"The lake is {_words(age)} behind the source; the limit is {_words(limit)}."

    def _of_proofs(self, proofs: Mapping[str, NewestProof], seen: dict[str, Any]) -> Iterator[str]:
        compared = {n: each for n, each in proofs.items() if each.is_equal is not None}
        covered = ((each.covered_since, n) for n, each in compared.items() if each.covered_since)
        oldest, name = min(covered, default=(None, ""))
        age = seen["proof_age_seconds"] = _age_seconds(oldest)
        differ = [name for name, each in proofs.items() if each.is_equal is False]
        if differ:
            yield f"The newest verification found differences in {few(differ)}."
        limit = _seconds(self.max_proof_age, "max_proof_age")
        if limit is None:
            return
        if not compared:
            yield "The lake was never verified."
        if begun := sorted(n for n, each in compared.items() if each.covered_since is None):
            yield f"{begun[0]} was never verified in whole: its first cycle of parts has not ended."
        if age is not None and age > limit:
            yield f"{name} was last verified {_words(age)} ago; the limit is {_words(limit)}."


def _seconds(limit: Any, name: str) -> float | None:
    """A limit in seconds. A template makes it a text."""
    if limit is None or limit in ("", "None"):
        return None
    if isinstance(limit, timedelta):
        return limit.total_seconds()
    try:
        return float(limit)
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"{name} is neither a timedelta nor a number of seconds.",
            advice="give a timedelta, or seconds like 3600.",
        ) from None


def _age_seconds(time: datetime | None) -> float | None:
    if time is None:
        return None
    return round(max((datetime.now(UTC) - time).total_seconds(), 0), 1)


def _has_all(status: SlotStatus, batch: Recorded) -> bool:
    """Whether the source has written nothing since a batch. Such a source makes no batch.

    Of a standby this is not known: its primary may have written something that has not arrived.
    """
    confirmed = status.confirmed_flush_lsn
    if confirmed is None or status.is_standby:
        return False
    return status.current_lsn <= batch.lsn_offset.of_server(batch.end_lsn) <= confirmed


def _seen_in_words(seen: Mapping[str, Any]) -> str:
    """What the check saw, in a sentence."""
    retained, age, proof_age = (
        seen.get(name) for name in ("retained_bytes", "age_seconds", "proof_age_seconds")
    )
    return (
        f"The server keeps {'no' if retained is None else f'{retained:,} bytes of'} WAL for it;"
        f" {'how old the lake is, is not known' if age is None else f'the lake is {_words(age)} behind'};"
        f" {'no proof is whole' if proof_age is None else f'the oldest proof is {_words(proof_age)} old'}."
    )


def _words(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
