"""A thread that looks at a slot again and again: it may never be past what is kept (I4).

It reads the checkpoint after the slot's position, and the checkpoint never goes back (I5), so no clock is
compared.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import psycopg
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

_PAUSE_SECONDS = 0.03


def number(lsn: str) -> int:
    """``16/B374D848`` as a number."""
    high, low = lsn.split("/")
    return (int(high, 16) << 32) + int(low, 16)


def read_checkpoint(properties: dict[str, str], namespace: str, slot_name: str) -> int | None:
    """How far the lake is, as its checkpoint table says."""
    catalog = load_catalog("lake", **properties)
    try:
        table = catalog.load_table((namespace, "pgoutput_checkpoint"))
    except NoSuchTableError:
        return None
    finally:
        catalog.close()
    rows = table.scan(selected_fields=("slot_name", "table_name", "end_lsn")).to_arrow().to_pylist()
    ends = [
        int(row["end_lsn"], 16)
        for row in rows
        if row["slot_name"] == slot_name and row["table_name"] is None
    ]
    return max(ends, default=None)


class SlotWatch:
    """Looks at one slot until it is stopped."""

    def __init__(
        self,
        conninfo: str,
        slot_name: str,
        namespace: str,
        properties: dict[str, str],
        staging: Path,
        *,
        moves_early: bool,
    ) -> None:
        """Begin to look.

        :param moves_early: the pipeline moves its slot when a batch is sealed.
        """
        self._conninfo, self._slot, self._namespace = conninfo, slot_name, namespace
        self._properties, self._staging = properties, staging
        self._moves_early = moves_early
        self._first: int | None = None
        self._last: int | None = None
        self.looks = 0
        self.faults: list[str] = []
        #: Set while the slot is made anew on purpose.
        self.paused = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="slot watch", daemon=True)
        self._thread.start()

    def begin_anew(self) -> None:
        """Forget the slot that was dropped on purpose."""
        self._first = self._last = None

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._look()
            except psycopg.OperationalError:
                self._stopping.wait(0.1)
            except Exception as error:
                self.faults.append(f"the watch ended: {error!r}")
                return

    def _look(self) -> None:
        with psycopg.connect(self._conninfo, autocommit=True) as session:
            while not self._stopping.wait(_PAUSE_SECONDS):
                row = session.execute(
                    "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s",
                    (self._slot,),
                ).fetchone()
                self.looks += 1
                if row is None or row[0] is None:
                    # It is made, or made anew: its position begins anew, too.
                    self.begin_anew()
                    continue
                if self.paused.is_set():
                    continue
                found = number(row[0])
                if self._first is None:
                    self._first = found
                if found != self._last and found > self._first:
                    kept = self._kept()
                    if kept is None and all(start >= found for start, _ in self._sealed()):
                        # It was made again at once (C198). The first batch begins there, once it is
                        # sealed.
                        self._first = found
                    if found > max(self._first, kept or 0):
                        self.faults.append(
                            f"I4: the slot is at {found:X}, what is kept ends at {kept or 0:X}"
                        )
                self._last = found

    def _kept(self) -> int | None:
        kept = read_checkpoint(self._properties, self._namespace, self._slot)
        if kept is not None and self._moves_early:
            for start, end in self._sealed():
                if start <= kept:
                    kept = max(kept, end)
        return kept

    def _sealed(self) -> list[tuple[int, int]]:
        """Where each sealed batch starts and ends, in order."""
        folder = self._staging / self._slot / "manifests"
        names = sorted(each.name.split("-") for each in folder.glob("*.json"))
        return [(int(start, 16), int(end, 16)) for start, end, *_ in names]

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()
