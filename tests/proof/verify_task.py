"""One verification with its repair as a program: the request comes as JSON on standard input."""

from __future__ import annotations

import json
import sys

from airflow_provider_pgoutput.proof.repair import after_repair, repair
from airflow_provider_pgoutput.proof.request import ProofRequest
from airflow_provider_pgoutput.proof.verify import refuse_differences, verify


def main() -> None:
    """Do what the task of the operator does."""
    request = ProofRequest(**json.load(sys.stdin))
    proof = verify(request)
    refuse_differences(request, after_repair(proof, repair(request, proof)))


if __name__ == "__main__":
    main()
