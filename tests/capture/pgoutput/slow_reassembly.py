"""Reassembly written to be read: one message at a time, lists of bytes. It says what ``reassemble.py`` gives.

A transaction's messages come out at its commit, without those of rolled back subtransactions. Behind
each Begin stand all relations that were ever announced to everybody and that the decoder may need: more
than the fast one repeats, which changes nothing in the decoded rows.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.capture.pgoutput.messages import parse_relation
from airflow_provider_pgoutput.capture.pgoutput.reference import event_of, misplaced
from airflow_provider_pgoutput.capture.pgoutput.state import NEXT_STATE, OUTSIDE
from airflow_provider_pgoutput.capture.pgoutput.stream_messages import (
    parse_begin_prepare,
    parse_commit_prepared,
    parse_prepare,
    parse_rollback_prepared,
    parse_stream_abort,
    parse_stream_commit,
    parse_stream_start,
    parse_stream_stop,
)
from airflow_provider_pgoutput.errors import ProtocolError
from tests.capture.pgoutput import encode

if TYPE_CHECKING:
    from airflow_provider_pgoutput.capture.pgoutput.messages import Commit


class SlowReassembler:
    def __init__(
        self,
        version: int,
        *,
        parallel: bool = False,
        two_phase: bool = True,
        commits_without_prepare: bool = False,
    ) -> None:
        self._version = version
        self._parallel = parallel
        self._two_phase_asked = two_phase
        self._commits_without_prepare = commits_without_prepare
        self._state = OUTSIDE
        self._open: int | None = None
        #: By transaction: its messages with the subtransaction of each.
        self._streams: dict[int, list[tuple[int, bytes]]] = {}
        #: Subtransactions that were rolled back, by transaction.
        self._aborted: dict[int, set[int]] = {}
        #: Of those, what was rolled back before anything of the transaction was streamed.
        self._aborted_before: dict[int, set[int]] = {}
        self._preparing: list[bytes] | None = None
        self._prepared: dict[tuple[int, str], list[bytes]] = {}
        #: By OID: the announcement that the server takes for known, and where it came in the stream.
        self._known: dict[int, tuple[int, bytes]] = {}
        self._announced_in: dict[int, dict[int, tuple[int, bytes]]] = {}
        self._roots: dict[int, int] = {}
        #: OIDs of the last two announcements, as long as nothing else follows.
        self._run: list[int] = []
        self._position = 0

    def take(self, body: bytes) -> list[bytes]:
        event = "A" if body[:1] == b"A" else event_of(body, self._version)
        if self._open is not None and event == "m":
            event = "M"  # Its flags stand behind the id, and only transactional ones are streamed.
        if event not in NEXT_STATE[self._state]:
            raise misplaced(event, self._state, None)
        self._state = NEXT_STATE[self._state][event]
        self._position += 1
        self._find_partition(body)
        if self._open is not None and event != "E":
            return self._in_block(body)
        if self._preparing is not None and event != "P":
            if event == "R":
                parse_relation(body)
            self._learn(body)
            self._preparing.append(body)
            return []
        if event in "SEAcbPpKr":
            return self._steer(event, body)
        self._learn(body)
        return [body, *self._announcements()] if event == "B" and self._version > 1 else [body]

    def _in_block(self, body: bytes) -> list[bytes]:
        assert self._open is not None
        xid = self._open
        if body[:1] != b"O":
            if len(body) < 5:
                raise ProtocolError("cut short")
            (xid,) = struct.unpack_from("!I", body, 1)
            body = body[:1] + body[5:]
        if xid in self._aborted[self._open]:
            raise ProtocolError("rolled back")
        if body[:1] == b"R" and len(body) > 4:
            (oid,) = struct.unpack_from("!I", body, 1)
            self._announced_in[self._open][oid] = (self._position, body)
        self._streams[self._open].append((xid, body))
        return []

    def _learn(self, body: bytes) -> None:
        if body[:1] == b"R" and len(body) > 4:
            self._known[struct.unpack_from("!I", body, 1)[0]] = (self._position, body)

    def _announcements(self) -> list[bytes]:
        """All of them; a partition between two of its root, and no other so by accident."""
        partitions = {oid for oid in self._known if self._roots.get(oid) in self._known}
        alone = [body for oid, (_, body) in self._known.items() if oid not in partitions]
        others = [body for body in alone for _ in range(2)]
        for oid in sorted(partitions):
            root = self._known[self._roots[oid]][1]
            others += [root, self._known[oid][1], root]
        return others

    def _find_partition(self, body: bytes) -> None:
        """A row of a root stands behind the announcements of the root and of its partition."""
        tag, at = body[:1], 1 if self._open is None else 5
        oid = struct.unpack_from("!I", body, at)[0] if len(body) >= at + 4 else -1
        if tag == b"R":
            self._run = [*self._run[-1:], oid]
        elif tag != b"Y":
            if (
                tag in (b"I", b"U", b"D")
                and len(self._run) == 2
                and self._run[0] == oid != self._run[1]
            ):
                self._roots[self._run[1]] = oid
            self._run = []

    def _whole(self, xid: int, commit: Commit, bodies: list[bytes]) -> list[bytes]:
        begin = encode.begin(commit.commit_lsn, commit.committed_at_us, xid)
        end = encode.commit(commit.commit_lsn, commit.end_lsn, commit.committed_at_us)
        return [begin, *bodies, *self._announcements(), end]

    def _steer(self, event: str, body: bytes) -> list[bytes]:
        if event == "S":
            start = parse_stream_start(body)
            if start.is_first == (start.xid in self._streams):
                raise ProtocolError("first flag")
            if start.is_first:
                self._streams[start.xid] = []
                self._aborted[start.xid] = self._aborted_before.pop(start.xid, set())
            self._announced_in.setdefault(start.xid, {})
            self._open = start.xid
        elif event == "E":
            parse_stream_stop(body)
            self._open = None
        elif event == "A":
            self._abort(body)
        elif event == "c":
            xid, commit = parse_stream_commit(body)
            bodies = [each for _, each in self._messages_of(xid)]
            del self._streams[xid]
            for oid, (position, announced) in self._announced_in.pop(xid).items():
                if oid not in self._known or self._known[oid][0] < position:
                    self._known[oid] = (position, announced)
            return self._whole(xid, commit, bodies)
        else:
            return self._two_phase(event, body)
        return []

    def _abort(self, body: bytes) -> None:
        abort = parse_stream_abort(body, with_time=self._parallel)
        is_whole = abort.xid == abort.subxid
        if abort.xid not in self._streams:
            self._aborted_before.setdefault(abort.xid, set()).add(abort.subxid)
            if is_whole:
                del self._aborted_before[abort.xid]
            return
        self._announced_in[abort.xid].clear()
        if is_whole:
            del self._streams[abort.xid]
            return
        self._aborted[abort.xid].add(abort.subxid)
        messages = self._streams[abort.xid]
        self._streams[abort.xid] = [each for each in messages if each[0] != abort.subxid]

    def _messages_of(self, xid: int) -> list[tuple[int, bytes]]:
        if xid not in self._streams:
            raise ProtocolError("not streamed")
        return self._streams[xid]

    def _two_phase(self, event: str, body: bytes) -> list[bytes]:
        if not self._two_phase_asked:
            raise ProtocolError("not asked for")
        if event == "b":
            self._begun = parse_begin_prepare(body)
            self._preparing = self._announcements()
        elif event == "P":
            prepare = parse_prepare(body)
            if self._preparing is None:
                self._preparing = []
            elif prepare != self._begun:
                raise ProtocolError("another prepare")
            self._prepared[prepare.xid, prepare.gid] = self._preparing
            self._preparing = None
        elif event == "p":
            prepare = parse_prepare(body)
            bodies = [each for _, each in self._messages_of(prepare.xid)]
            del self._streams[prepare.xid]
            self._prepared[prepare.xid, prepare.gid] = bodies
        elif event == "r":
            parse_rollback_prepared(body)
        else:
            message = parse_commit_prepared(body)
            if (message.xid, message.gid) not in self._prepared:
                if self._commits_without_prepare:
                    return []
                raise ProtocolError("never prepared")
            bodies = self._prepared[message.xid, message.gid]
            return self._whole(message.xid, message.commit, bodies)
        return []
