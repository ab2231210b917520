"""F40: a transaction that is left out on request, from the slot to the checkpoint table.

That a run fails at its LSN until then is shown in ``tests/capture/test_skipped_transactions.py``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.request import AFTER_APPLY
from tests.conformance.compare import connect

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.faults.conftest import Subject


def test_f40_a_transaction_left_out_is_recorded_and_the_rest_is_whole(
    subject: Callable[[int], Subject],
) -> None:
    run = subject(40)
    run.run()
    run.work(2)
    with connect(run.pipeline.conninfo) as session:
        session.execute("INSERT INTO account VALUES (4000, 'poison'), (4001, 'poison')")
    poisoned = run.pipeline.stage(advance=AFTER_APPLY)
    account = next(each for each in poisoned.manifest.tables if each.table_name == "account")
    files = [str(run.pipeline.staging / f.path) for f in account.versions[-1].files]
    row = (
        run.pipeline.spark.read.parquet(*files).where("n0 = 4000").selectExpr("commit_lsn").first()
    )
    assert row is not None
    lsn = Lsn(row[0])
    with connect(run.pipeline.conninfo) as session:
        # The lake never had them; without the transaction it is what the source is without the rows.
        session.execute("DELETE FROM account WHERE id IN (4000, 4001)")
    run.judge.remember_source()
    batch = run.stage(skip_lsns=(lsn,))
    assert [(each.commit_lsn, each.changes) for each in batch.manifest.skipped] == [(str(lsn), 2)]
    run.apply(batch)
    run.advance()
    run.work(2)
    run.finish()
    name = f"lake.{run.pipeline.namespace}.pgoutput_checkpoint"
    run.pipeline.spark.catalog.refreshTable(name)
    kept = run.pipeline.spark.table(name).where("skipped IS NOT NULL").collect()
    assert [(each["table_name"], json.loads(each["skipped"])) for each in kept] == [
        (None, {str(lsn): 2})
    ]
