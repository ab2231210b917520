"""What of a verification of many tables is shown."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.proof.digest import Digest
from airflow_provider_pgoutput.proof.record import NewestProof, proof_xcom, proven
from airflow_provider_pgoutput.proof.report import Differences, Proof, TableProof

EQUAL = Digest(2, 5)


def test_of_many_tables_xcom_has_those_that_are_not_proven() -> None:
    tables = [TableProof(f"public.t{each}", f"shop.t{each}", EQUAL, EQUAL) for each in range(300)]
    tables[250] = TableProof("public.log", "shop.log", not_compared="it is a change log")
    differs = Differences(1, 0, 0, 1, 1, 1)
    tables[280] = TableProof("public.bad", "shop.bad", Digest(3, 6), EQUAL, differs)
    found = proof_xcom(Proof("shop", "1", Lsn(16), tuple(tables)))
    names = [each["table_name"] for each in found["tables"]]
    assert names[:3] == ["public.bad", "public.log", "public.t0"]
    assert (len(names), found["tables_left_out"]) == (200, 100)
    few = proof_xcom(Proof("shop", "1", Lsn(16), tuple(tables[:3])))
    assert few.keys() == {"lsn", "tables"}


def test_what_is_proven_counts_each_table_as_it_was_found_last() -> None:
    """The newest verification looked at one table only, as the one after a repair does."""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    before = [NewestProof(Lsn(16), at, each, None, 5) for each in (True, False, None)]
    repaired = NewestProof(Lsn(32), at + timedelta(hours=1), True, None, 7)
    assert (
        proven([*before, repaired])
        == "2 of 4 tables, 12 rows equal at 0/10 to 0/20, 2026-01-01T01:00:00+00:00"
    )
    assert proven(before[:1]) == "1 of 1 tables, 5 rows equal at 0/10, 2026-01-01T00:00:00+00:00"
    assert proven([]) == ""


def test_a_table_whose_rows_cannot_be_counted_differs() -> None:
    table = TableProof("public.t", "shop.t", Digest(3, 6), EQUAL, not_counted="SourceLocked: it is")
    proof = Proof("shop", "1", Lsn(16), (TableProof("public.a", "shop.a", EQUAL, EQUAL), table))
    assert proof.different == (table,)
    (first, _) = proof_xcom(proof)["tables"]
    assert (first["table_name"], first["is_equal"]) == ("public.t", False)
    assert "missing" not in first
    assert str(table) == (
        "public.t differs from shop.t: its rows could not be counted (SourceLocked: it is)"
    )
