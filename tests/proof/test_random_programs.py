"""After each batch of a random program the verification agrees with a judge that shares no code with it.

Then something is changed in the lake's tables, and both must find that, or none. ``make torture PROOFS=1
SEED=1 RUNS=50`` runs other seeds.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.proof.request import MD5
from tests.proof.random_programs import RandomProgram

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.proof.worlds import World

_SEEDS = [int(seed) for seed in os.environ.get("PGOUTPUT_PROOF_SEEDS", "1").split(",")]
_ROUNDS = 3


@pytest.mark.further
@pytest.mark.parametrize("seed", _SEEDS)
def test_the_verification_agrees_with_the_judge(new_world: Callable[..., World], seed: int) -> None:
    program = RandomProgram(new_world(("p",)), seed)
    try:
        program.first_run()
        for _ in range(_ROUNDS):
            program.work(15)
            # The pipeline brings the lake to the LSN while it is verified.
            first = program.verify()
            judged = program.judged()
            # At last the source goes on behind the LSN.
            others = (
                program.verify(hash_function=MD5),
                program.verify(share=0.5),
                program.verify_held(),
                program.verify(3),
            )
            for proof in (first, *others):
                assert program.disagreements(judged, proof) == []
        program.catch_up()
        mutations = program.mutate()
        judged = program.judged()
        proof, by_md5 = program.verify(), program.verify(hash_function=MD5)
        assert program.disagreements(judged, proof) == [], mutations
        assert program.disagreements(judged, by_md5) == [], mutations
        for each in proof.tables:
            if each.table in mutations and judged[each.table] is False:
                program.found[f"found {mutations[each.table].partition(':')[0]}"] += 1
                assert each.not_compared is None, str(each)
    finally:
        program.close()
    print(f"seed {seed}: {dict(sorted(program.found.items()))}")
