"""Items that threads make, handed to the one that takes them, a few at a time.

The taker sees the items in order, then the end, or the error that making them raised. Either side may
stop the whole: whoever waits then leaves soon. What is not here: the threads, which their owner joins, but
for those that ``interleaved`` starts.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

Item = TypeVar("Item")

#: How long a wait lasts before it looks whether somebody stopped.
_PATIENCE_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class _End:
    """What a maker hands over last: why it ended, or None when it made everything."""

    error: BaseException | None


class HandOver(Generic[Item]):
    """A bounded queue with an end, errors and a stop.

    :param capacity: items that wait at most; 0: any number.
    :param makers: how many threads must end before the items end.
    :param stopping: one event for several queues that stop together.
    """

    def __init__(
        self, capacity: int, *, makers: int = 1, stopping: threading.Event | None = None
    ) -> None:
        self._items: queue.Queue[Item | _End] = queue.Queue(capacity)
        self._makers = makers
        self._stopping = stopping or threading.Event()

    def feed(self, items: Generator[Item, None, None]) -> bool:
        """Hand over all items and then the end, or the error that making them raises.

        :param items: a generator, so that nothing runs, or fails, before it is here; it is closed.
        :returns: whether all of it arrived; False: somebody stopped, or there was an error.
        """
        try:
            with contextlib.closing(items):
                for item in items:
                    if not self.put(item):
                        return False
        except BaseException as error:
            self.fail(error)
            return False
        return self.end()

    def put(self, item: Item) -> bool:
        """Hand over one item, waiting for room; False: somebody stopped."""
        return self._put(item)

    def end(self) -> bool:
        """Say that one maker made everything; False: somebody stopped."""
        return self._put(_End(None))

    def fail(self, error: BaseException) -> None:
        """Let the taker raise this."""
        self._put(_End(error))

    def stop(self) -> None:
        """Let both sides leave."""
        self._stopping.set()

    def __iter__(self) -> Iterator[Item]:
        """The items, until all makers have ended or somebody stopped; for one taker."""
        while self._makers and not self._stopping.is_set():
            try:
                item = self._items.get(timeout=_PATIENCE_SECONDS)
            except queue.Empty:
                continue
            if not isinstance(item, _End):
                yield item
            elif item.error is not None:
                raise item.error
            else:
                self._makers -= 1

    def _put(self, item: Item | _End) -> bool:
        while not self._stopping.is_set():
            try:
                self._items.put(item, timeout=_PATIENCE_SECONDS)
            except queue.Full:
                continue
            return True
        return False


def interleaved(sources: Sequence[Generator[Item, None, None]]) -> Iterator[Item]:
    """The items of several generators, each as it comes, until all have ended or one failed.

    :param sources: a thread runs each; one alone runs here. When the taker leaves before the end, each is
        closed after its next item.
    """
    if len(sources) == 1:
        yield from sources[0]
        return
    items: HandOver[Item] = HandOver(1, makers=len(sources))
    for each in sources:
        threading.Thread(target=items.feed, args=(each,), name="interleaved", daemon=True).start()
    try:
        yield from items
    finally:
        items.stop()
