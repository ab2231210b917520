"""What the publications held when a batch was begun: recorded in its manifest, compared by the next run.

A table that leaves a publication and comes back has the same name and the same OID; only the rows of the
catalog that make it a member are others. What is not here: reading and comparing them, see
``capture/membership.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: How the text of a membership with a row filter ends.
FILTERED = " filtered"


@dataclass(frozen=True, slots=True)
class PublicationMark:
    """A publication."""

    name: str
    oid: int
    #: The transaction that wrote its row of ``pg_publication`` last; any ALTER PUBLICATION ... SET does.
    written_by: str
    via_partition_root: bool
    #: Whether stored generated columns are published, from version 18 on; None: not recorded.
    generated_columns: bool | None = None


@dataclass(frozen=True, slots=True)
class TableMark:
    """A published table, and by which rows of the catalog it is one."""

    relation_oid: int
    #: ``schema.table``, for people.
    name: str
    #: A text for each way in which it is published. It stays the same exactly as long as the table is
    #: published so without a break; one that ends with ``filtered`` has a row filter.
    memberships: tuple[str, ...]
    #: Of a table that is published via its root: a text for each partition that holds rows.
    partitions: tuple[str, ...] = ()
    #: Of memberships whose publication leaves out operations (``publish``): those left out, of ``iudt``.
    leaves_out: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class PublishedSet:
    """All publications that are read, and what they publish."""

    publications: tuple[PublicationMark, ...]
    tables: tuple[TableMark, ...]

    @classmethod
    def from_body(cls, body: dict[str, Any] | None) -> PublishedSet | None:
        """What ``dataclasses.asdict`` made of one, after JSON; None: nothing was recorded."""
        if body is None:
            return None
        return cls(
            tuple(PublicationMark(**each) for each in body["publications"]),
            tuple(
                TableMark(
                    **{
                        **each,
                        "memberships": tuple(each["memberships"]),
                        "partitions": tuple(each["partitions"]),
                        "leaves_out": tuple(
                            (mark, out) for mark, out in each.get("leaves_out", ())
                        ),
                    }
                )
                for each in body["tables"]
            ),
        )
