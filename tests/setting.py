"""What a whole run of the tests is asked to do in another way than usual; ``conftest.py`` sets it."""

from __future__ import annotations

from airflow_provider_pgoutput.capture.request import AFTER_APPLY
from airflow_provider_pgoutput.capture.stream.options import SQL

#: When pipelines move their slot, where a test does not say it (``pytest --advance after_stage``).
advance = AFTER_APPLY
#: How pipelines read their slot, where a test does not say it (``pytest --transport walsender``).
transport = SQL
