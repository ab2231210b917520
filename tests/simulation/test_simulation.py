"""A thousand seeds hold the invariants, and the simulation finds what it is there for.

``make simulate SEEDS=10000 SEED=1`` runs more. No PostgreSQL and no Spark are needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.simulation.mutants import MUTANTS
from tests.simulation.simulate import follow, run_seed, run_seeds

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_SEEDS = 1000
#: Seeds in which each mutant is found; most are in less than a hundred.
_SEEDS_OF_A_MUTANT = 1000


@pytest.mark.slow
def test_a_thousand_seeds_hold_the_invariants() -> None:
    counts, failures = run_seeds(range(1, _SEEDS + 1))
    assert not failures, "\n\n".join(str(each) for each in failures)
    # What the seeds are there for did happen.
    assert counts["seeds"] == _SEEDS
    for what in (
        "killed",
        "write unanswered",
        "write lost",
        "server crashed",
        "slot lost",
        "table rolled back",
        "PublishRefused",
        "CommitStateUnknown",
        "TableRolledBack",
        "SlotAheadOfCheckpoint",
        "tables set aside",
        "bring back succeeded",
        "row deleted",
        "rows in the quarantine",
        "MissingPrivilege",
        "ValueRefused",
        "RowMissing",
        "TableRefused",
    ):
        assert counts[what], f"no seed led to: {what}"


def test_a_seed_repeats_itself() -> None:
    first, second = (run_seed(7)[0] for _ in range(2))
    assert first == second
    assert first["steps"]


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.__name__)
def test_a_safeguard_that_is_taken_out_is_missed(mutant: Callable[[], Any]) -> None:
    with mutant():
        for seed in range(1, _SEEDS_OF_A_MUTANT + 1):
            _, failure = run_seed(seed)
            if failure is not None:
                break
        else:
            pytest.fail(f"no violation in {_SEEDS_OF_A_MUTANT} seeds")
        # The short history that is printed breaks the same promise.
        assert follow(failure.schedule)[0] is not None
    assert follow(failure.schedule)[0] is None, "the product itself holds it"
