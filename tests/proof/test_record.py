"""What of a verification of many tables is shown."""

from __future__ import annotations

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.proof.digest import Digest
from airflow_provider_pgoutput.proof.record import proof_xcom
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
