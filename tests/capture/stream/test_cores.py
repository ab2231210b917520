"""How many cores are free: what others use is not, and what this process uses is."""

from __future__ import annotations

from airflow_provider_pgoutput.capture.stream.cores import (
    FreeCores,
    Usage,
    allowed_cores,
    free_between,
    idle_seconds,
)

# user nice system idle iowait irq softirq steal guest guest_nice
_STAT = """\
cpu  900 0 0 600 60 0 0 0 0 0
cpu0 300 0 0 100 10 0 0 0 0 0
cpu1 300 0 0 200 20 0 0 0 0 0
cpu12 300 0 0 300 30 0 0 0 0 0
intr 12 0 0
ctxt 100
"""


def test_only_the_cores_that_this_process_may_use_count() -> None:
    assert idle_seconds(_STAT, {0, 1, 12}, 100) == 6.6
    assert idle_seconds(_STAT, {1}, 100) == 2.2


def test_a_system_that_counts_nothing_does_not_look_busy() -> None:
    assert idle_seconds("cpu  0 0 0 0 0\ncpu0 0 0 0 0 0\n", {0}, 100) is None


def test_idle_cores_and_those_that_this_process_uses_are_free() -> None:
    before = Usage(at=10.0, idle=100.0, own=5.0)
    # Two cores for half a second.
    assert free_between(before, Usage(at=10.5, idle=101.0, own=5.0)) == 2
    assert free_between(before, Usage(at=10.5, idle=100.5, own=5.5)) == 2
    # Somebody else uses one of them, then both.
    assert free_between(before, Usage(at=10.5, idle=100.2, own=5.3)) == 1
    assert free_between(before, Usage(at=10.5, idle=100.0, own=5.1)) == 0


def test_this_machine_tells_how_many_of_its_cores_are_free() -> None:
    assert 0 <= FreeCores().count() <= len(allowed_cores())
