"""What holds when a repair is done, and which rows it leaves alone: no server, no lake."""

from __future__ import annotations

from collections import Counter

import pytest

from airflow_provider_pgoutput.batch.answers import FAIL, SUCCEED
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.staging.repairs import KeysOfTable
from airflow_provider_pgoutput.errors import LakeDiffers, NothingCompared
from airflow_provider_pgoutput.proof.digest import Digest
from airflow_provider_pgoutput.proof.ranges import DifferentKeys
from airflow_provider_pgoutput.proof.repair import after_repair
from airflow_provider_pgoutput.proof.repair_keys import meant_to_differ
from airflow_provider_pgoutput.proof.report import Differences, Proof, TableProof
from airflow_provider_pgoutput.proof.request import ProofRequest
from airflow_provider_pgoutput.proof.verify import refuse_differences

_TWO, _THREE = Digest(2, 5), Digest(3, 6)
_KEYS = KeysOfTable(7, "public.t", ("id",), (("1",),))
_DIFFERS = TableProof(
    "public.t",
    "shop.t",
    _THREE,
    _TWO,
    Differences(1, 0, 0, 1, 1, 1),
    to_repair=_KEYS,
    not_repaired="its surplus rows stay",
    relation_oid=7,
)


def _after(*second: TableProof) -> TableProof:
    first = Proof("shop", "1", Lsn(16), (_DIFFERS,))
    found = after_repair(first, Proof("shop", "1", Lsn(32), second))
    assert found.lsn == Lsn(32)
    (table,) = found.tables
    assert found.different == ((table,) if table.is_different else ())
    return table


def test_a_difference_stays_if_the_table_is_not_compared_again() -> None:
    aside = TableProof("public.t", "shop.t", not_compared="it is set aside", relation_oid=7)
    found = _after(aside)
    assert found.is_different
    assert "1 missing" in str(found)
    assert "it is not repaired: it was not compared again: it is set aside" in str(found)


def test_a_difference_stays_if_the_table_is_not_published_any_more() -> None:
    found = _after(TableProof("public.t", "shop.u", _TWO, _TWO, relation_oid=8))
    assert found.is_different
    assert found.not_repaired == "it was not compared again: no publication has it now"


def test_a_verification_that_compared_nothing_proved_nothing() -> None:
    aside = TableProof("public.t", "shop.t", not_compared="it is set aside")
    log = TableProof("public.u", "shop.u", not_compared="it is a change log")
    equal = TableProof("public.v", "shop.v", _TWO, _TWO)
    damaged = TableProof("public.w", "shop.w", not_compared="a file is missing", is_damaged=True)
    with pytest.raises(NothingCompared, match=r"t was .*: it is set aside; .*u was .*: it is a"):
        _refuse(aside, log)
    with pytest.raises(NothingCompared, match="and 2 more tables"):
        _refuse(*[aside] * 12)
    with pytest.raises(LakeDiffers, match="a file is missing"):
        _refuse(aside, damaged)
    _refuse(aside, equal)
    _refuse()
    _refuse(aside, log, on_difference=SUCCEED)


def _refuse(*tables: TableProof, on_difference: str = FAIL) -> None:
    request = ProofRequest(
        conninfo="",
        slot_name="shop",
        publication_names=("p",),
        staging_uri="file:///nowhere",
        catalog_name="lake",
        catalog_properties={},
        namespace="shop",
        on_difference=on_difference,
    )
    refuse_differences(request, Proof("shop", "1", Lsn(16), tables))


def test_a_table_that_was_renamed_is_the_same_table() -> None:
    found = _after(TableProof("public.other", "shop.t", _TWO, _TWO, relation_oid=7))
    assert (found.table, found.is_equal) == ("public.other", True)


def test_what_was_left_alone_is_named_while_the_table_differs() -> None:
    found = _after(
        TableProof("public.t", "shop.t", _THREE, _TWO, not_counted="SourceLocked", relation_oid=7)
    )
    assert "its rows could not be counted (SourceLocked)" in str(found)
    assert found.not_repaired == "its surplus rows stay"


@pytest.mark.parametrize(
    ("left_out", "stays", "why"),
    [
        ("", "", None),
        ("d", "surplus", "no deletes"),
        ("t", "surplus", "no truncates"),
        ("dt", "surplus", "no deletes or truncates"),
        ("u", "different", "no updates"),
        ("i", "missing", "no inserts"),
    ],
)
def test_rows_that_differ_by_intention_are_not_repaired(
    left_out: str, stays: str, why: str | None
) -> None:
    found = DifferentKeys(
        missing=Counter({1: 1}), surplus=Counter({2: 1}), different=Counter({3: 1})
    )
    repaired, said = meant_to_differ(found, left_out)
    kinds = {each: getattr(repaired, each) for each in ("missing", "surplus", "different")}
    assert [each for each, keys in kinds.items() if not keys] == ([stays] if stays else [])
    assert said == (
        f"its {stays} rows stay as they are, because its publications send {why}" if why else None
    )


def test_rows_of_all_kinds_may_stay() -> None:
    found = DifferentKeys(missing=Counter(), surplus=Counter({2: 1}), different=Counter({3: 1}))
    repaired, said = meant_to_differ(found, "udt")
    assert not any((repaired.missing, repaired.surplus, repaired.different))
    assert said is not None
    assert said.count("stay as they are") == 2
