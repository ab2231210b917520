"""Lets the verification of the package judge a pipeline that is quiet, and compares it with the judge.

It runs beside the pipeline, in a process of its own: it leaves a mark, the pipeline ends a batch there, and
it compares. Where the judge found a table equal, it has to be proven equal. Where the judge found other rows,
the verification must not call the table equal.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from tests.chaos.on_the_way import SECRET
from tests.chaos.pipeline import Fault, Kills

if TYPE_CHECKING:
    from collections import Counter

    from tests.chaos.judge import Verdict
    from tests.chaos.pipeline import Pipeline
    from tests.chaos.tasks import Tasks

_WAIT_SECONDS = 100


def verify(pipeline: Pipeline, verifier: Tasks, verdict: Verdict, found: Counter[str]) -> list[str]:
    """Where verification and judge do not agree.

    :param verifier: starts the verification; the pipeline's own tasks run meanwhile.
    :param found: counts what the verification said of tables.
    :raises Fault: it failed.
    """
    body = {
        **pipeline.source(),
        "publication_names": list(pipeline.publications),
        "mask_secret": SECRET,
        "wait_seconds": _WAIT_SECONDS,
    }
    running = verifier.begin("verify", body)
    deadline = time.monotonic() + _WAIT_SECONDS
    while not running.report.exists() and time.monotonic() < deadline:
        pipeline.run(Kills(0, 0))
        time.sleep(0.2)
    outcome = running.end()
    pipeline.note(verification=outcome.result, refusal=outcome.refusal, seconds=outcome.seconds)
    if outcome.result is None:
        raise Fault(f"the verification failed: {outcome.refusal}")
    faults = []
    for table, each in sorted(outcome.result.items()):
        if each["why not compared"] is not None:
            found[f"not compared: {_pattern(each['why not compared'])}"] += 1
            continue
        found["equal" if each["equal"] else "different"] += 1
        if not each["equal"] and table in verdict.equal:
            faults.append(f"the judge finds it equal, and the verification says: {each['text']}")
        elif each["equal"] and not each["left out"] and table in verdict.other_rows:
            faults.append(f"the judge finds other rows, and the verification says: {each['text']}")
    return faults


def _pattern(reason: str) -> str:
    """A reason without names and numbers, for counting."""
    return re.sub(r"\b(\w+\.\w+|c\d+|[0-9A-F]+/[0-9A-F]+|\d+)\b", "_", reason)[:90]
