"""The queue between threads: order, end, errors and stop, from both sides."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.capture.source.threads import BoundedQueue, interleaved

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

_TIME_LIMIT_SECONDS = 10


def in_a_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def joined(thread: threading.Thread) -> bool:
    thread.join(_TIME_LIMIT_SECONDS)
    return not thread.is_alive()


def numbers(count: int) -> Generator[int, None, None]:
    yield from range(count)


def test_items_arrive_in_order_and_end() -> None:
    ready: BoundedQueue[int] = BoundedQueue(2)
    maker = in_a_thread(lambda: ready.feed(numbers(50)))
    assert list(ready) == list(range(50))
    assert joined(maker)


def test_items_of_several_makers_end_with_the_last_one() -> None:
    ready: BoundedQueue[int] = BoundedQueue(2, producers=3)
    producers = [in_a_thread(lambda: ready.feed(numbers(20))) for _ in range(3)]
    assert sorted(ready) == sorted([*range(20)] * 3)
    assert all(joined(each) for each in producers)


def test_an_error_of_a_maker_is_raised_after_what_it_made() -> None:
    def failing() -> Generator[int, None, None]:
        yield 1
        raise OSError("of the maker")

    ready: BoundedQueue[int] = BoundedQueue(2, producers=2)
    assert ready.feed(failing()) is False
    taker = iter(ready)
    assert next(taker) == 1
    with pytest.raises(OSError, match="of the maker"):
        next(taker)


def test_a_stopped_maker_leaves_and_its_generator_is_closed() -> None:
    closed = threading.Event()

    def endless() -> Generator[int, None, None]:
        try:
            while True:
                yield 1
        finally:
            closed.set()

    ready: BoundedQueue[int] = BoundedQueue(1)
    results: list[bool] = []
    maker = in_a_thread(lambda: results.append(ready.feed(endless())))
    assert next(iter(ready)) == 1
    ready.stop()
    assert joined(maker)
    assert closed.is_set()
    assert results == [False]


def test_a_stopped_taker_leaves_although_nothing_comes() -> None:
    stopping = threading.Event()
    empty: BoundedQueue[int] = BoundedQueue(1, stopping=stopping)
    other: BoundedQueue[int] = BoundedQueue(1, stopping=stopping)
    taken: list[int] = []
    taker = in_a_thread(lambda: taken.extend(empty))
    other.stop()
    assert joined(taker)
    assert taken == []
    assert empty.put(1) is False


def test_what_one_generator_waits_for_holds_up_no_other() -> None:
    told = threading.Event()

    def patient() -> Generator[str, None, None]:
        assert told.wait(_TIME_LIMIT_SECONDS)
        yield "at last"

    found = []
    for item in interleaved([patient(), iter_of("a", "b")]):
        found.append(item)
        if item == "b":
            told.set()
    assert found == ["a", "b", "at last"]
    assert list(interleaved([iter_of("alone")])) == ["alone"]
    assert not list(interleaved([]))


def iter_of(*items: str) -> Generator[str, None, None]:
    yield from items


def test_one_that_fails_stops_the_others() -> None:
    closed = threading.Event()

    def endless() -> Generator[int, None, None]:
        try:
            while True:
                yield 1
        finally:
            closed.set()

    def failing() -> Generator[int, None, None]:
        yield 2
        raise OSError("of one")

    with pytest.raises(OSError, match="of one"):
        list(interleaved([endless(), failing()]))
    assert closed.wait(_TIME_LIMIT_SECONDS)
