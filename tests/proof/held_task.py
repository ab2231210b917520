"""A verification that holds totals, as a program: the request comes as JSON on standard input."""

from __future__ import annotations

import json
import sys

from airflow_provider_pgoutput.proof.held import HeldTotals, complete, hold
from airflow_provider_pgoutput.proof.request import ProofRequest


def main() -> None:
    """Hold totals, or complete what is held."""
    body = json.load(sys.stdin)
    held = body.pop("held", None)
    request = ProofRequest(**body)
    if held is None:
        hold(request)
    else:
        kept = HeldTotals.from_body(held)
        assert kept is not None
        complete(request, kept)


if __name__ == "__main__":
    main()
