"""Hands items that threads make to the one that takes them, a few at a time.

The consumer gets the items in order, and then the end, or the error that making them raised. Either side may
stop everything; whoever waits then leaves soon. The owner joins its threads. ``interleaved`` joins those that
it starts.
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

#: How long a wait lasts before it checks whether somebody stopped.
_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class _End:
    """What a producer hands over last: its error, or None if it made everything."""

    error: BaseException | None


class BoundedQueue(Generic[Item]):
    """A bounded queue with an end, errors and a stop.

    :param capacity: at most so many items wait; 0: any number.
    :param producers: how many threads must end before the items end.
    :param stopping: an event, for several queues that stop together.
    """

    def __init__(
        self, capacity: int, *, producers: int = 1, stopping: threading.Event | None = None
    ) -> None:
        self._items: queue.Queue[Item | _End] = queue.Queue(capacity)
        self._producers = producers
        self._stopping = stopping or threading.Event()

    def feed(self, items: Generator[Item, None, None]) -> bool:
        """Hand over all items, and then the end, or the error that making them raises.

        :param items: a generator, so that nothing runs or fails before this call. It is closed.
        :returns: whether everything arrived; False: somebody stopped, or there was an error.
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
        """Hand over one item, and wait for room; False: somebody stopped."""
        return self._put(item)

    def end(self) -> bool:
        """Say that one producer made everything; False: somebody stopped."""
        return self._put(_End(None))

    def fail(self, error: BaseException) -> None:
        """Let the consumer raise this."""
        self._put(_End(error))

    def stop(self) -> None:
        """Let both sides leave."""
        self._stopping.set()

    def __iter__(self) -> Iterator[Item]:
        """The items, until all producers have ended or somebody stopped. For one consumer."""
        while self._producers and not self._stopping.is_set():
            try:
                item = self._items.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                continue
            if not isinstance(item, _End):
                yield item
            elif item.error is not None:
                raise item.error
            else:
                self._producers -= 1

    def _put(self, item: Item | _End) -> bool:
        while not self._stopping.is_set():
            try:
                self._items.put(item, timeout=_POLL_SECONDS)
            except queue.Full:
                continue
            return True
        return False


def interleaved(sources: Sequence[Generator[Item, None, None]]) -> Iterator[Item]:
    """The items of several generators, each as it comes, until all have ended or one failed.

    :param sources: each runs in a thread; a single one runs here. If the consumer leaves early, each is
        closed after its next item.
    """
    if len(sources) == 1:
        yield from sources[0]
        return
    items: BoundedQueue[Item] = BoundedQueue(1, producers=len(sources))
    for each in sources:
        threading.Thread(target=items.feed, args=(each,), name="interleaved", daemon=True).start()
    try:
        yield from items
    finally:
        items.stop()
