"""The PostgreSQL systems from which a lake was filled before another one was adopted, and earlier timelines.

A system is what ``pg_control_system()`` names. Example: pg_upgrade makes a new system of a server. A server
that went back to an earlier LSN, by a restore or a promotion, keeps that name. If it is adopted, it counts as
another system, and the name gets the number of its timeline: ``7412345@3``.

LSNs of two systems mean different things. If those of an adopted system are not past the lake's checkpoint,
the lake adds an offset to them (``LsnOffset``). That makes each new LSN greater than each old one.

A timeline is a part of one system's history. A promoted standby begins a new one at the last LSN that it
has. The primary may have written more: that part is lost. The lake may have some of it, if a batch was
published in some tables only.

Source: https://www.postgresql.org/docs/current/continuous-archiving.html (Timelines)
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.batch.lsn import NO_OFFSET, Lsn, LsnOffset
from airflow_provider_pgoutput.errors import ConfigurationError, TableRefused

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True, slots=True)
class EarlierSystem:
    """A system that another one has replaced as the source of a lake."""

    system_identifier: str
    #: The checkpoint when the other one was adopted. The lake has nothing of this system past it.
    end_lsn: str
    #: What the lake adds to the LSNs of that other one.
    next_lsn_offset: str = str(NO_OFFSET)


@dataclass(frozen=True, slots=True)
class EarlierTable:
    """What a table of the source had on the earlier system, if it has another OID on the present one."""

    oid: int
    #: For each column: its ``attnum`` there, and the one on the present system.
    numbers: tuple[tuple[int, int], ...]

    @classmethod
    def from_body(cls, body: dict[str, Any] | None) -> EarlierTable | None:
        """What ``json`` made of it; None: there is none."""
        if body is None:
            return None
        return cls(int(body["oid"]), tuple((int(then), int(now)) for then, now in body["numbers"]))


def name_from(system_identifier: str, timeline: int) -> str:
    """The name of a server that is adopted after a failover or a recovery that lost changes.

    :param system_identifier: what ``pg_control_system()`` says.
    """
    return f"{system_identifier}@{timeline}"


def is_of(name: str, system_identifier: str, timeline: int) -> bool:
    """Whether a name means this server. ``7412345@3`` does not mean 7412345 on timeline 2.

    :param system_identifier: what ``pg_control_system()`` says.
    """
    identifier, _, since = name.partition("@")
    return identifier == system_identifier and timeline >= int(since or 0)


@dataclass(frozen=True, slots=True)
class Systems:
    """The system of a batch or of a checkpoint, and those before it."""

    system_identifier: str
    #: The oldest first.
    earlier: tuple[EarlierSystem, ...] = ()

    def have(self, system_identifier: str | None, end_lsn: Lsn) -> bool:
        """Whether the lake may have a batch of a system.

        It may if the batch is of the present system, or of an earlier one and ends before the adoption.

        :param end_lsn: where the batch ends.
        """
        return system_identifier == self.system_identifier or any(
            each.system_identifier == system_identifier and end_lsn <= Lsn.parse(each.end_lsn)
            for each in self.earlier
        )

    def left(self, system_identifier: str | None, end_lsn: Lsn) -> bool:
        """Whether a batch is of an earlier system and ends past the adoption. The lake must not have it."""
        is_earlier = any(each.system_identifier == system_identifier for each in self.earlier)
        return is_earlier and not self.have(system_identifier, end_lsn)

    def at(self, lsn: Lsn) -> Systems:
        """The systems as they were when the lake was at an LSN.

        At the LSN at which the lake left a system, that system is still the source.
        """
        if self.adopted_at is None or lsn > self.adopted_at:
            return self
        return Systems(self.earlier[-1].system_identifier, self.earlier[:-1]).at(lsn)

    def later_names(
        self, rows: Sequence[tuple[str | None, int | None, str | None]]
    ) -> dict[str, dict[int, set[str]]]:
        """By system and OID: each ``schema.table`` that the OID has on later systems.

        If a name is not among them, the OID went to another table. That may have been renamed since: so all
        of its names count.

        :param rows: system, OID and name of tables in the lake.
        """
        found: dict[str, dict[int, set[str]]] = {self.system_identifier: {}}
        later: dict[int, set[str]] = {}
        newest = self.system_identifier
        for each in reversed(self.earlier):
            for system, oid, name in rows:
                if system == newest and oid is not None and name is not None:
                    later.setdefault(oid, set()).add(name)
            newest = each.system_identifier
            found[newest] = {oid: set(names) for oid, names in later.items()}
        return found

    @property
    def lsn_offset(self) -> LsnOffset:
        """What the lake adds to the LSNs of the present system."""
        return LsnOffset(Lsn.parse(self.earlier[-1].next_lsn_offset)) if self.earlier else NO_OFFSET

    @property
    def adopted_at(self) -> Lsn | None:
        """Where the lake was when the newest system was adopted; None: there was one system only."""
        return Lsn.parse(self.earlier[-1].end_lsn) if self.earlier else None


def to_text(earlier: Sequence[EarlierSystem]) -> str | None:
    """The value of ``adopted_from`` in the checkpoint table."""
    return json.dumps([asdict(each) for each in earlier]) if earlier else None


def from_text(text: str | None) -> tuple[EarlierSystem, ...]:
    """Read what ``to_text`` wrote.

    :raises TableRefused: it is something else.
    """
    try:
        found = tuple(EarlierSystem(**each) for each in json.loads(text)) if text else ()
        for each in found:
            Lsn.parse(each.end_lsn)
            Lsn.parse(each.next_lsn_offset)
    except (ValueError, TypeError, AttributeError, ConfigurationError) as error:
        raise TableRefused(
            "The column adopted_from of the checkpoint table is not what the pipeline writes.",
            advice="somebody wrote to it; rebuild it from the tables' snapshot summaries.",
        ) from error
    return found


@dataclass(frozen=True, slots=True)
class EarlierTimeline:
    """A timeline that a promotion ended."""

    timeline: int
    #: Where the next timeline began. The source has nothing of this timeline past it.
    end_lsn: str


def end_before(
    earlier: Iterable[EarlierTimeline], timeline: int | None, end_lsn: Lsn
) -> Lsn | None:
    """Where the source left the timeline of a batch, if the batch ends later; None: no loss is known.

    :param timeline: of the batch; None: not known.
    :param end_lsn: where the batch ends.
    """
    for each in earlier:
        if each.timeline == timeline and Lsn.parse(each.end_lsn) < end_lsn:
            return Lsn.parse(each.end_lsn)
    return None
