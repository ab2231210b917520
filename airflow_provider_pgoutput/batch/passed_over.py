"""Tables whose changes are passed over from some LSN on: what manifest and checkpoint record.

There are two causes. A table that is gone at the source cannot be copied again. When a change of it cannot be
followed, that change and all later ones are passed over (``capture/schema/gone.py``, ``apply/refused.py``).
Or the stage task refuses a table, and ``on_table_refused`` says that the others go on. Such a table is set
aside: its entry has the error, and apply records it as ``batch/set_aside.py`` says.

The lake keeps the table as it was before. Whole transactions are passed over, so the table in the lake equals
the source's at one LSN. No batch has what was passed over. So only a copy ends this.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from airflow_provider_pgoutput.batch.table_version import TableVersion


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A table whose changes a batch passes over, or no longer passes over."""

    relation_oid: int
    #: ``schema.table``.
    table_name: str
    #: Commit LSN of the first transaction that was passed over; None: the batch copies the table, so its
    #: changes are applied again.
    since_lsn: str | None
    #: Number of row changes of this batch that are passed over.
    changes: int = 0
    #: The change that could not be followed, in one sentence.
    reason: str = ""
    #: The class of the error for which the stage task set the table aside. Empty: the table is gone, or an
    #: earlier batch began to pass it over.
    error: str = ""
    #: What to do about that error.
    advice: str = ""


@dataclass(frozen=True, slots=True)
class RefusedCopy:
    """A copy that ``copy_tables`` asked for and that the batch does not have.

    The table may be followed all the same, see ``capture/staging/passing.py``.
    """

    #: ``schema.table``.
    table_name: str
    #: The class of the error.
    error: str
    reason: str
    advice: str = ""

    def __str__(self) -> str:
        advice = f" What to do: {self.advice}" if self.advice else ""
        return f"{self.error}: {self.reason}{advice}"


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
    """The value of ``passed_over`` in the checkpoint table; None: there is none."""
    found = [dataclasses.asdict(each) for each in passed_over]
    return json.dumps(found, ensure_ascii=True) if found else None


def since_by_oid(
    texts: Iterable[str], later_names: Iterable[Mapping[int, Container[str]]] | None = None
) -> dict[int, str]:
    """By OID: from which LSN on tables are passed over after these batches.

    :param texts: what ``to_text`` wrote for the batches, oldest first.
    :param later_names: for each text, by OID: each ``schema.table`` that has the OID on a later system than
        that of the batch. If the name is another one, the entry is about another table and does not count.
    :raises ValueError: one of the texts is something else.
    """
    found: dict[int, str] = {}
    if later_names is None:
        later_names = itertools.repeat({})
    for text, names in zip(texts, later_names, strict=False):
        for body in json.loads(text):
            oid, since_lsn = _entry(body)
            if since_lsn is None:
                found.pop(oid, None)
            elif oid not in names or body.get("table_name") in names[oid]:
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
