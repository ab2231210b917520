"""F44: one transaction that is larger than any memory: what a stage process needs does not grow with it.

Five gigabytes are staged by ``make bench``; here two sizes are compared. What is
not here: a disk that has no room for what is spilled, see ``pgoutput/test_reassemble.py`` and F27.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.capture.stream.options import StreamOptions
from tests.capture.pipeline_support import checkpoint_of

if TYPE_CHECKING:
    from tests.capture.pipeline_support import Source

#: Both are larger than all that a process keeps at a time.
_SMALL_ROWS, _LARGE_ROWS = 80_000, 240_000
#: A process that kept the larger transaction would need 240 MiB more.
_MOST_GROWTH_KIB = 150 << 10
_FILL = "INSERT INTO t SELECT g, repeat(md5(g::text), 48) FROM generate_series({first}, {last}) g"


@pytest.mark.parametrize(
    ("transport", "streaming"),
    [
        ("sql", "on"),
        pytest.param("sql", "off", marks=pytest.mark.exhaustive),
        pytest.param("walsender", "on", marks=pytest.mark.exhaustive),
    ],
)
def test_f44_memory_does_not_grow_with_a_transaction(
    source: Source, transport: str, streaming: str
) -> None:
    checkpoint, first, peaks = checkpoint_of(source.stage()), 1, []
    options = {
        "transport": transport,
        "options": StreamOptions(streaming=streaming),
        "memory_mib": 32,
    }
    for rows in (_SMALL_ROWS, _LARGE_ROWS):
        source.execute(_FILL.format(first=first, last=first + rows - 1))
        peaks.append(source.stage_measured(checkpoint=checkpoint, **options))
        sealed = source.stage(checkpoint=checkpoint, **options)
        assert (sealed.changes, sealed.transactions) == (rows, 1)
        checkpoint, first = checkpoint_of(sealed), first + rows
    assert peaks[1] - peaks[0] < _MOST_GROWTH_KIB, f"peaks of {peaks} KiB"
