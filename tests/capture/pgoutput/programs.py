"""Random programs: streams of versions 2 to 4 as a server could send them, from a seed."""

from __future__ import annotations

import itertools
import random

from tests.capture.pgoutput import encode

LSN = 0x16_B374D848
T, U = 16385, 16386


class Program:
    """A random source: sessions with savepoints whose WAL is streamed, prepared or sent whole."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 - a test
        self.stream: list[bytes] = []
        self._lsn = LSN
        self._xid = 700
        self._shapes = {T: 2, U: 2}
        #: What the server takes for announced to everybody, by OID.
        self._sent: set[int] = set()
        self._open: dict[int, _Session] = {}

    def run(self, steps: int) -> list[bytes]:
        for _ in range(steps):
            self._step()
        while self._open:
            self._end(next(iter(self._open.values())))
        return self.stream

    def next_lsn(self) -> int:
        self._lsn += 64
        return self._lsn

    def next_xid(self) -> int:
        self._xid += 1
        return self._xid

    def _step(self) -> None:
        choice = self.random.random()
        if choice < 0.15 and len(self._open) < 4:
            session = _Session(self, self.next_xid())
            self._open[session.xid] = session
        elif choice < 0.75 and self._open:
            self.random.choice(list(self._open.values())).block()
        elif choice < 0.85 and self._open:
            self._end(self.random.choice(list(self._open.values())))
        elif choice < 0.9:
            self._alter()
        else:
            self._whole()

    def _alter(self) -> None:
        """A committed change of a table's shape; the server will announce it again to everybody."""
        oid = self.random.choice((T, U))
        if any(oid in session.used for session in self._open.values()):
            return  # An open transaction holds a lock on it.
        self._shapes[oid] = self.random.randint(1, 4)
        self._sent.discard(oid)
        for session in self._open.values():
            session.sent.discard(oid)

    def changes(self, sent: set[int], subxid: int | None, used: set[int]) -> list[bytes]:
        """Some row changes, with the announcements that they need."""
        bodies = []
        for _ in range(self.random.randint(0, 4)):
            oid = self.random.choice((T, U))
            used.add(oid)
            if oid not in sent:
                names = [(f"c{i}", 25) for i in range(self._shapes[oid])]
                bodies.append(encode.relation(oid, names))
                sent.add(oid)
            values = [str(self.random.random()).encode() for _ in range(self._shapes[oid])]
            kind = self.random.random()
            if kind < 0.6:
                bodies.append(encode.insert(oid, values))
            elif kind < 0.8:
                bodies.append(encode.update(oid, values, values))
            elif kind < 0.9:
                bodies.append(encode.delete(oid, values))
            else:
                bodies.append(encode.truncate([oid]))
        return bodies if subxid is None else [encode.streamed(each, subxid) for each in bodies]

    def _whole(self) -> None:
        lsn, xid = self.next_lsn(), self.next_xid()
        if self.random.random() < 0.3:
            gid = f"g{self.random.randint(1, 2)}"
            body = self.changes(self._sent, None, set())
            prepared = [encode.begin_prepare(lsn, xid, gid), *body, encode.prepare(lsn, xid, gid)]
            self.stream += prepared
            self._finish_prepared(lsn, xid, gid)
            return
        body = self.changes(self._sent, None, set())
        self.stream += [encode.begin(lsn, 0, xid), *body, encode.commit(lsn)]

    def _finish_prepared(self, lsn: int, xid: int, gid: str) -> None:
        for _ in range(self.random.randint(0, 2)):
            self._step()
        if self.random.random() < 0.7:
            self.stream.append(encode.commit_prepared(self.next_lsn(), xid, gid))
        else:
            self.stream.append(encode.rollback_prepared(lsn, self.next_lsn(), xid, gid))

    def _end(self, session: _Session) -> None:
        del self._open[session.xid]
        if not session.streamed:
            return
        choice = self.random.random()
        if choice < 0.2:
            self.stream.append(encode.stream_abort(session.xid, session.xid))
        elif choice < 0.4:
            lsn = self.next_lsn()
            self.stream.append(encode.prepare(lsn, session.xid, "s", b"p"))
            self._finish_prepared(lsn, session.xid, "s")
        else:
            self.stream.append(encode.stream_commit(session.xid, self.next_lsn()))
            self._sent |= session.sent


class _Session:
    def __init__(self, program: Program, xid: int) -> None:
        self._program = program
        self.xid = xid
        self._subxids = [xid]
        self.sent: set[int] = set()
        self.used: set[int] = set()
        self.streamed = False

    def block(self) -> None:
        program = self._program
        choice = program.random.random()
        if choice < 0.2:
            self._subxids.append(program.next_xid())
        elif choice < 0.35 and len(self._subxids) > 1:
            # PostgreSQL 18 does so of what it never streamed, too.
            for subxid in reversed(self._subxids[1:]):
                program.stream.append(encode.stream_abort(self.xid, subxid))
            del self._subxids[1:]
            self.sent.clear()
        else:
            bodies = program.changes(self.sent, self._subxids[-1], self.used)
            start = encode.stream_start(self.xid, not self.streamed)
            program.stream += [start, *bodies, encode.stream_stop()]
            self.streamed = True


def cuts(bodies: list[bytes], seed: int, most: int = 12) -> list[list[bytes]]:
    choose = random.Random(seed)  # noqa: S311 - a test
    places = sorted(choose.randint(0, len(bodies)) for _ in range(choose.randint(0, most)))
    edges = [0, *places, len(bodies)]
    return [bodies[first:last] for first, last in itertools.pairwise(edges)]
