"""Looks whether a catalog keeps branches and tags: makes one of each, reads them back and removes them.

A catalog may answer that all is well, and keep only main. Example: Nessie 0.99. There a commit to a branch
moves main, so readers would see rows before their batch is published.

Source: https://iceberg.apache.org/spec/#table-metadata (refs)
"""

from __future__ import annotations

import functools
import logging
import uuid
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.errors import (
    CommitStateUnknown,
    ConfigurationError,
    PublishRefused,
)

if TYPE_CHECKING:
    from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable

log = logging.getLogger(__name__)

_ATTEMPTS = 4
#: References that a killed job left are removed by the first expiry of snapshots after so long.
_MAX_AGE_MS = 24 * 60 * 60 * 1000


def refuse_without_references(table: IcebergTable) -> None:
    """Try out a branch and a tag on a table of the pipeline's own that has no rows yet.

    :raises ConfigurationError: the catalog does not keep them.
    :raises PublishRefused: the table changed each time.
    :raises CommitStateUnknown: the catalog did not say what it committed; another try makes others.
    """
    branch, tag = _made(table)
    if table.branch_head(branch) in (None, table.head):
        raise _refusal(table, "A branch was made on a table, and the catalog did not keep it apart")
    if table.branch_head(tag) is None:
        raise _refusal(table, "A tag was made on a table, and the catalog did not keep it")

    def remove() -> None:
        table.java.manageSnapshots().removeBranch(branch).removeTag(tag).commit()

    try:
        table.change(remove)
    except (PublishRefused, CommitStateUnknown) as refusal:
        # Another slot's first batch wrote to the table. What is left does no harm.
        log.info("%s Branch %s of it goes with an expiry of snapshots.", refusal, branch)


def _made(table: IcebergTable) -> tuple[str, str]:
    """Make a branch and a tag in one commit; return their names."""
    for attempt in range(1, _ATTEMPTS + 1):
        # Other slots may look at the same time, so each look has names of its own.
        mark = uuid.uuid4().hex[:8]
        branch, tag = f"pgoutput_look_{mark}", f"pgoutput_look_tag_{mark}"
        try:
            table.change(functools.partial(_make, table, branch, tag))
        except PublishRefused:
            if attempt == _ATTEMPTS:
                raise
            table.refresh()
        else:
            return branch, tag
    raise AssertionError("the last attempt raises")


def _make(table: IcebergTable, branch: str, tag: str) -> None:
    transaction = table.java.newTransaction()
    # It makes the branch, and a snapshot on it that main must not get.
    transaction.newFastAppend().toBranch(branch).commit()
    head = transaction.table().refs().get(branch).snapshotId()
    change = transaction.manageSnapshots().createTag(tag, head)
    change.setMaxRefAgeMs(branch, _MAX_AGE_MS).setMaxRefAgeMs(tag, _MAX_AGE_MS).commit()
    transaction.commitTransaction()


def _refusal(table: IcebergTable, what: str) -> ConfigurationError:
    return ConfigurationError(
        f"{what}, although it answered that all was well.",
        table=table.name.target,
        advice="use a catalog that keeps Iceberg's branches and tags. Nothing was written to any table.",
    )
