"""Files of targets are lost or overwritten in the store: the other tables go on, and the tables come back.

What is not here: each way of writing, and what is not the table's damage
(``tests/apply/test_damaged_tables.py``).
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from pyiceberg.catalog import load_catalog

from tests.apply.test_damaged_tables import MISSING, OTHER_BYTES, damaged
from tests.conformance.many_tables import Tables
from tests.conformance.pipeline import CATALOG
from tests.conformance.test_tables_set_aside import aside

if TYPE_CHECKING:
    from tests.conformance.pipeline import Pipeline

EVERY = ("lost", "other", "good", "good_log")
CHANGES = ("UPDATE {} SET d = d + 1 WHERE a = 1", "INSERT INTO {0} SELECT max(a) + 1, 0 FROM {0}")


def file_of(pipeline: Pipeline, name: str) -> Path:
    """The one data file of a target."""
    catalog = load_catalog(CATALOG, **pipeline.catalog_properties)
    (task,) = catalog.load_table((pipeline.namespace, name)).scan().plan_files()
    return Path(urlsplit(task.file.file_path).path)


@pytest.mark.further
def test_tables_that_lost_files_stop_no_other_and_come_back(
    pipeline: Pipeline, caplog: pytest.LogCaptureFixture
) -> None:
    """One comes back by itself when its file is there again, and the other by a copy."""
    pipeline.capture_options.update(on_table_refused="set_aside")
    pipeline.plan_options.update(on_table_refused="set_aside")
    tables = Tables(pipeline, logs=("public.good_log",))

    def changes(*names: str) -> list[str]:
        return [statement.format(name) for name in names for statement in CHANGES]

    tables.run(
        *(f"CREATE TABLE {name} (a int PRIMARY KEY, d int)" for name in EVERY),
        *(f"INSERT INTO {name} VALUES (1, 1), (2, 2)" for name in EVERY),
        f"CREATE PUBLICATION p FOR TABLE {', '.join(EVERY)}",
    )
    files = {name: file_of(pipeline, name) for name in ("lost", "other")}
    with ExitStack() as stack:
        stack.enter_context(damaged(files["lost"], MISSING[0]))
        stack.enter_context(damaged(files["other"], OTHER_BYTES[0]))
        for lacking in (1, 2):
            manifest = tables.run(*changes(*EVERY))
            assert pipeline.confirmed_flush_lsn() == manifest.end_lsn
            found = aside(pipeline)
            assert found.keys() == files.keys()
            for name, each in found.items():
                assert each.batches == lacking
                assert each.refusal.error == "TableDamaged"
                assert each.refusal.message.startswith(f"The file {files[name].name} ")
                assert "copy_tables" in each.refusal.advice
            tables.assert_equal("good", "good_log")
        assert "Not all of these tables are back: public.lost, public.other" in caplog.text
        tables.run(copy_tables=("public.other",))
        assert aside(pipeline).keys() == {"lost"}
        tables.assert_equal("other", "good", "good_log")
    tables.run(*changes("good"))
    assert aside(pipeline) == {}
    tables.assert_equal(*EVERY)
    tables.run(*changes(*EVERY))
    tables.assert_equal(*EVERY)
    tables.assert_repeatable()
