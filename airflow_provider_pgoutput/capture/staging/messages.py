"""Logical messages as rows of a messages file, see ``batch/changes.py``. It also filters them by prefix.

``pgoutput/logical_messages.py`` decides which messages belong to the batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_pgoutput.batch.changes import MESSAGES
from airflow_provider_pgoutput.lake.arrow_types import arrow_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider_pgoutput.capture.pgoutput.blocks import LogicalMessageBlock

SCHEMA = pa.schema([pa.field(name, arrow_type(lake_type)) for name, lake_type in MESSAGES])


def message_rows(block: LogicalMessageBlock, prefixes: Sequence[str]) -> pa.RecordBatch:
    """The messages of a block as rows of a messages file.

    :param prefixes: only messages with one of these prefixes; empty: all.
    """
    rows = pa.RecordBatch.from_arrays(
        [
            pa.array(block.lsn),
            block.commit_lsn,
            block.seq,
            block.xid,
            block.commit_ts_us.cast(SCHEMA.field("commit_ts").type),
            pa.array(block.transactional),
            block.prefix,
            block.content,
        ],
        schema=SCHEMA,
    )
    if not prefixes:
        return rows
    return rows.filter(pc.is_in(block.prefix, value_set=pa.array(prefixes, pa.string())))
