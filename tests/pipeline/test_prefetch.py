from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from haystack.pipeline.encoders.prefetch import prefetch


@settings(max_examples=30)
@given(st.integers(0, 30), st.integers(0, 4), st.integers(1, 9), st.randoms(use_true_random=False))
def test_results_come_in_order(count: int, threads: int, ahead: int, random: object) -> None:
    delays = [random.random() / 1000 for _ in range(count)]  # type: ignore[attr-defined]

    def work(number: int) -> int:
        time.sleep(delays[number])
        return number * number

    found = list(prefetch(work, range(count), threads=threads, ahead=ahead))
    assert found == [number * number for number in range(count)]


def test_no_more_than_so_many_items_are_held() -> None:
    read = 0

    def items() -> Iterator[int]:
        nonlocal read
        for number in range(50):
            read += 1
            yield number

    handed_out = 0
    for _ in prefetch(lambda item: item, items(), threads=3, ahead=5):
        handed_out += 1
        assert read <= handed_out + 5
    assert handed_out == 50


def test_items_are_read_and_worked_on_while_the_caller_is_busy() -> None:
    working, busy = threading.Event(), threading.Event()

    def work(number: int) -> int:
        if number == 1:
            assert busy.wait(10), "the caller never got the first result"
            working.set()
        return number

    results = prefetch(work, iter(range(3)), threads=2, ahead=2)
    assert next(results) == 0
    busy.set()
    assert working.wait(10), "nothing is done ahead"
    assert list(results) == [1, 2]


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_errors_come_at_their_turn(threads: int) -> None:
    def work(number: int) -> float:
        return 1 / (3 - number)

    results = prefetch(work, range(9), threads=threads, ahead=8)
    assert [next(results) for _ in range(3)] == [1 / 3, 1 / 2, 1]
    with pytest.raises(ZeroDivisionError):
        next(results)

    def items() -> Iterator[int]:
        yield 0
        raise KeyError("torn")

    results = prefetch(work, items(), threads=threads, ahead=8)
    assert next(results) == 1 / 3
    with pytest.raises(KeyError, match="torn"):
        next(results)


def test_threads_end_with_the_caller() -> None:
    before = threading.active_count()
    results = prefetch(lambda item: item, range(100), threads=4, ahead=8)
    assert next(results) == 0
    results.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before
