"""What the publications held when a batch began. The manifest records it, and the next run compares it.

A table that leaves a publication and comes back keeps its name and OID. Only the catalog's rows that make it
a member are new. ``capture/membership.py`` reads and compares them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: The text of a membership with a row filter ends with this.
FILTERED = " filtered"


@dataclass(frozen=True, slots=True)
class PublicationVersion:
    """A publication."""

    name: str
    oid: int
    #: The transaction that last wrote its row in ``pg_publication``. Any ALTER PUBLICATION ... SET does so.
    written_by: str
    via_partition_root: bool
    #: Whether stored generated columns are published (version 18 and later); None: not recorded.
    generated_columns: bool | None = None


@dataclass(frozen=True, slots=True)
class TableMembership:
    """A published table, and the rows of the catalog that make it one."""

    relation_oid: int
    #: ``schema.table``, for messages.
    name: str
    #: A text for each way in which it is published. The text stays the same exactly as long as the table is
    #: published in this way without a break. It ends with ``filtered`` if there is a row filter.
    memberships: tuple[str, ...]
    #: For a table that is published via its root: a text for each partition that has rows.
    partitions: tuple[str, ...] = ()
    #: Pairs: a membership, and the operations that its publication does not send (``publish``), as letters of
    #: ``iudt``. Memberships that send all operations are not here.
    leaves_out: tuple[tuple[str, str], ...] = ()

    @property
    def never_sent(self) -> frozenset[str]:
        """The operations that none of its publications sends: letters of ``iudt``."""
        of_each = dict(self.leaves_out)
        return frozenset("iudt").intersection(*(of_each.get(each, "") for each in self.memberships))


@dataclass(frozen=True, slots=True)
class PublishedSet:
    """All publications that are read, and their tables."""

    publications: tuple[PublicationVersion, ...]
    tables: tuple[TableMembership, ...]

    @classmethod
    def from_body(cls, body: dict[str, Any] | None) -> PublishedSet | None:
        """Read the JSON form, which is that of ``dataclasses.asdict``; None: nothing was recorded."""
        if body is None:
            return None
        return cls(
            tuple(PublicationVersion(**each) for each in body["publications"]),
            tuple(
                TableMembership(
                    **{
                        **each,
                        "memberships": tuple(each["memberships"]),
                        "partitions": tuple(each["partitions"]),
                        "leaves_out": tuple(
                            (membership, letters)
                            for membership, letters in each.get("leaves_out", ())
                        ),
                    }
                )
                for each in body["tables"]
            ),
        )
