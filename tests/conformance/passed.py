"""On which servers each scenario passed: noted by the tests themselves, in ``passed.json`` beside this file.

``PGOUTPUT_RECORD_SERVERS=1 pytest tests/conformance --postgres-version 16`` notes what passes and what
does not on that version. What is not here: the page that shows it, see ``page.py``.
"""

from __future__ import annotations

import json
from pathlib import Path

VARIABLE = "PGOUTPUT_RECORD_SERVERS"
RECORD = Path(__file__).with_name("passed.json")
#: How the names of the tests begin whose outcome is noted.
NOTED = (
    "test_scenarios.py::test_scenario[",
    "test_scenarios.py::test_every_way_stages_the_same[",
    "test_refusals.py::",
    "test_schema_changes.py::",
    "test_lake_refusals.py::",
    "test_wide_and_odd_tables.py::",
    "test_messages_and_origins.py::",
    "test_table_life.py::",
    "test_partition_life.py::",
    "test_partition_identity.py::test_c19",
    "test_source_events.py::",
    "test_late_commits.py::",
    "test_collations.py::",
    "test_server_states.py::",
    "test_streaming.py::test_a_large_subtransaction_",
    "test_random_sessions.py::test_every_way_stages_the_same[",
    "test_hostile_server.py::test_a_stream_that_breaks_",
    "test_altered_composites.py::",
    "test_altered_types.py::",
    "test_gone_types.py::",
    "test_positions.py::test_f20_",
    "test_diagnose.py::test_what_a_run_under_way_",
    "test_lake_partitions.py::",
    "test_older_rows.py::test_a_generated_",
    "test_target_names.py::test_the_name_of_a_view_",
    "test_session.py::test_hostile_defaults_",
    "test_gone.py::",
    "test_ddl_beside_copies.py::test_a_table_that_is_altered_",
    "test_publication_gaps.py::test_rows_of_a_",
    "test_publication_gaps.py::test_a_root_is_copied_",
    "test_publication_gaps.py::test_a_generated_column_",
    "test_tables_that_go.py::",
    "test_staging_set_aside.py::test_a_table_that_cannot_",
    "test_tables_set_aside.py::test_tables_that_cannot_be_staged_",
    "test_unknown_values.py::",
    "test_masks.py::test_no_plain_value_",
    "test_masked_columns.py::",
    "test_names_by_pattern.py::",
    "test_data_on_the_way.py::",
    "test_filtered_rows.py::test_filtered_rows",
    "test_history_tables.py::",
    "test_erasure.py::test_no_byte_holds_",
    "test_two_pipelines.py::test_two_pipelines_at_once_",
)


def read() -> dict[str, list[int]]:
    """Major versions by test, the test named as pytest does, from its file on."""
    found: dict[str, list[int]] = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


def note(test: str, version: int, *, passed: bool) -> None:
    """Note the outcome of one test; what stands there of other versions stays."""
    record = read()
    versions = set(record.get(test, ())) - {version}
    record[test] = sorted(versions | {version} if passed else versions)
    lines = (f"  {json.dumps(name)}: {json.dumps(record[name])}" for name in sorted(record))
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def versions_of(test: str, record: dict[str, list[int]]) -> list[int]:
    """Major versions on which a test passed, with all of its parameters."""
    found = [
        set(versions)
        for name, versions in record.items()
        if name == test or name.startswith(f"{test}[")
    ]
    return sorted(set.intersection(*found)) if found else []
