"""The words by which a pooler that takes no parameters at the start is recognised."""

from __future__ import annotations

import pytest

from airflow_provider_pgoutput.capture.source.errors import meaning
from airflow_provider_pgoutput.capture.source.pinned import refuses_startup
from airflow_provider_pgoutput.errors import ConfigurationError

#: The first apostrophe of RDS Proxy is the one that it sends.
_REFUSALS = [
    "FATAL: unsupported startup parameter: options",
    "FATAL:  RDS Proxy currently doesn\u2019t support command-line options.",
    "FATAL:  RDS Proxy currently doesn't support command-line options.",
    "FATAL:  RDS Proxy currently doesn\u2019t support streaming replication mode.",
]


@pytest.mark.parametrize("said", _REFUSALS)
def test_a_pooler_that_takes_no_startup_options_is_recognised(said: str) -> None:
    assert refuses_startup(said)
    refused = meaning(None, said)
    assert isinstance(refused, ConfigurationError)
    assert "direct_conn_id" in str(refused)


def test_another_refusal_is_no_poolers() -> None:
    assert not refuses_startup('FATAL:  role "rds" does not exist')
