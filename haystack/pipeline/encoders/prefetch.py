"""Work done ahead in threads, in a fixed order and in bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar, cast

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_END = object()


def prefetch(
    function: Callable[[_Item], _Result], items: Iterable[_Item], *, threads: int, ahead: int
) -> Iterator[_Result]:
    """``map`` that works ahead: results come in the order of ``items`` whatever finishes first.

    One more thread reads ``items``, so that slow storage is waited for beside everything else.
    It pays where ``function`` releases the interpreter's lock, as decoding a picture does.

    Args:
        function: called in any of the threads.
        items: read in order, by one thread at a time.
        threads: how many call ``function``; 0 = none, each item when it is asked for.
        ahead: most items that are read and not yet handed out.

    Raises:
        Whatever ``items`` or ``function`` raise, when it is the turn of that item.
    """
    if threads == 0:
        yield from map(function, items)
        return
    iterator = iter(items)

    def work(read: Future[object]) -> object:
        item = read.result()
        return _END if item is _END else function(cast(_Item, item))

    # A single reader serves its queue in order, and workers begin in the order of theirs: a worker
    # never waits for an item that is read after one whose worker has not begun.
    reader = ThreadPoolExecutor(1, thread_name_prefix="prefetch-read")
    workers = ThreadPoolExecutor(threads, thread_name_prefix="prefetch")
    try:
        pending: deque[Future[object]] = deque()
        while True:
            while len(pending) < ahead:
                pending.append(workers.submit(work, reader.submit(next, iterator, _END)))
            result = pending.popleft().result()
            if result is _END:
                return
            yield cast(_Result, result)
    finally:
        reader.shutdown(cancel_futures=True)
        workers.shutdown(cancel_futures=True)
