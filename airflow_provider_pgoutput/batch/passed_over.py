"""Tables whose changes are passed over from some position on: what manifest and checkpoint say of them.

A table that is gone at the source cannot be copied again. When a change of it cannot be followed, that
change and all later ones are passed over, and the lake keeps the table as it was before. Whole transactions
are passed over, so that the table in the lake equals the source's at one position. Only a copy ends that.
What is not here: the decision (``capture/schema/gone.py`` and ``apply/gone.py``).
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_provider_pgoutput.batch.table_version import TableVersion


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A table of which a batch passes changes over, or no longer does."""

    relation_oid: int
    #: ``schema.table``.
    table_name: str
    #: Commit LSN of the first transaction that was passed over; None: the batch copies the table, so that its
    #: changes are applied again.
    since_lsn: str | None
    #: Row changes of this batch that are passed over.
    changes: int = 0
    #: What could not be followed, in one sentence.
    reason: str = ""


def first_lsn(versions: Iterable[TableVersion]) -> Lsn | None:
    """Commit LSN of the first change of these versions; None: they have no changes."""
    found = [
        Lsn.parse(file.min_commit_lsn)
        for version in versions
        for file in version.files
        if file.min_commit_lsn is not None
    ]
    return min(found, default=None)


def to_text(passed_over: Iterable[PassedOver]) -> str | None:
    """The checkpoint's ``passed_over`` of a batch; None: there is none."""
    found = [dataclasses.asdict(each) for each in passed_over]
    return json.dumps(found, ensure_ascii=True) if found else None


def since_by_oid(texts: Iterable[str]) -> dict[int, str]:
    """Since which LSN tables are passed over at the end of batches, by OID.

    :param texts: what ``to_text`` made of the batches, oldest first.
    :raises ValueError: one of them is something else.
    """
    found: dict[int, str] = {}
    for text in texts:
        for body in json.loads(text):
            oid, since_lsn = _entry(body)
            if since_lsn is None:
                found.pop(oid, None)
            else:
                found.setdefault(oid, since_lsn)
    return found


def _entry(body: Mapping[str, object]) -> tuple[int, str | None]:
    try:
        oid, since_lsn = body["relation_oid"], body["since_lsn"]
    except (KeyError, TypeError) as error:
        raise ValueError("It is no entry of a table.") from error
    if not isinstance(oid, int) or not isinstance(since_lsn, str | None):
        raise ValueError("It is no entry of a table.")
    return oid, since_lsn
