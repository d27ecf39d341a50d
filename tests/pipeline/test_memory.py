from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from haystack.errors import HaystackError
from haystack.pipeline.memory import InHalves, is_out_of_memory

OUT_OF_MEMORY = (
    torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has ..."),
    RuntimeError("MPS backend out of memory (MPS allocated: 8.00 GB, other allocations: 1.00 GB)"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:75] . DefaultCPUAllocator: can't allocate memory"),
    RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes."),
    RuntimeError("CUDA error: out of memory"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    MemoryError(),
)


class Device:
    """Takes at most ``room`` items at once."""

    def __init__(self, room: int, error: BaseException = OUT_OF_MEMORY[0]) -> None:
        self.room = room
        self.error = error
        self.sizes: list[int] = []

    def __call__(self, items: Sequence[int]) -> list[int]:
        self.sizes.append(len(items))
        if len(items) > self.room:
            raise self.error
        return [10 * item for item in items]


def in_halves(device: Device, told: list[str]) -> InHalves[int, list[int]]:
    return InHalves(device, what="image", lower="embed.image_size", notify=told.append)


@given(st.lists(st.integers(1, 40), max_size=6), st.integers(1, 40))
def test_nothing_is_lost_or_reordered(sizes: list[int], room: int) -> None:
    device, told = Device(room), []
    run = in_halves(device, told)
    for size in sizes:
        items = list(range(size))
        assert [row for part in run(items) for row in part] == [10 * item for item in items]
    failed = [size for size in device.sizes if size > room]
    assert failed == sorted(set(failed), reverse=True), "a size that failed is not tried again"
    assert len(told) == len(failed)


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=lambda error: str(error)[:30])
def test_the_smaller_size_is_said_once_and_kept(error: BaseException) -> None:
    device, told = Device(2, error), []
    run = in_halves(device, told)
    assert list(run([1, 2, 3, 4, 5])) == [[10, 20], [30, 40], [50]]
    assert told == ["out of memory with 5 images at once; going on with 2 at once"]
    assert list(run([6, 7, 8])) == [[60, 70], [80]]
    assert device.sizes == [5, 2, 2, 1, 2, 1]
    assert len(told) == 1


def test_all_at_once_where_it_fits() -> None:
    told: list[str] = []
    run = in_halves(Device(8), told)
    assert list(run([1, 2, 3])) == [[10, 20, 30]]
    assert list(run([])) == []
    assert told == []
    assert run.limit is None


def test_one_item_that_does_not_fit_is_an_error_that_says_what_to_lower() -> None:
    run = in_halves(Device(0), [])
    with pytest.raises(HaystackError, match=r"a single image .*2\.00 GiB.*lower embed\.image_size"):
        list(run([1, 2, 3, 4]))


def test_an_item_that_does_not_fit_is_left_out_and_batches_stay_large() -> None:
    sizes: list[int] = []

    def call(items: Sequence[int]) -> list[int]:
        sizes.append(len(items))
        if 9 in items:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried 2.00 GiB.")
        return [10 * item for item in items]

    left_out: list[tuple[int, str]] = []

    def unfit(item: int, reason: str) -> list[int]:
        left_out.append((item, reason))
        return [-1]

    run = InHalves(call, what="image", lower="it", notify=lambda _: None, unfit=unfit)
    assert [row for part in run([1, 9, 3, 4]) for row in part] == [10, -1, 30, 40]
    assert list(run([5, 6, 7, 8])) == [[50, 60, 70, 80]]
    assert sizes == [4, 2, 1, 1, 2, 4], "the limit is what it was before that item"
    ((item, reason),) = left_out
    assert item == 9
    assert reason.startswith("a single image does not fit")


def test_several_in_a_row_that_do_not_fit_are_the_devices_fault() -> None:
    def call(items: Sequence[int]) -> int:
        raise MemoryError

    run = InHalves(call, what="image", lower="it", notify=lambda _: None, unfit=lambda i, _: i)
    with pytest.raises(HaystackError, match="a single image does not fit"):
        list(run([1, 2, 3, 4]))


def test_other_errors_pass_through() -> None:
    told: list[str] = []
    run = in_halves(Device(0, RuntimeError("mat1 and mat2 shapes cannot be multiplied")), told)
    with pytest.raises(RuntimeError, match="mat1"):
        list(run([1, 2]))
    assert told == []
    assert not is_out_of_memory(ValueError("out of memory"))


def test_the_failed_call_keeps_nothing_alive_while_its_halves_run() -> None:
    held: list[weakref.ref[torch.Tensor]] = []

    def call(items: Sequence[int]) -> int:
        gc.disable()  # only reference counts may free it, as on a device that is full
        assert [ref() for ref in held] == [None] * len(held)
        tensor = torch.zeros(4)
        held.append(weakref.ref(tensor))
        if len(items) > 1:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        return len(items)

    try:
        run = InHalves(call, what="image", lower="it", notify=lambda _: None)
        assert list(run([1, 2])) == [1, 1]
    finally:
        gc.enable()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_real_device_that_is_full() -> None:
    told: list[str] = []
    free, _ = torch.cuda.mem_get_info()

    def call(items: Sequence[int]) -> int:
        block = torch.empty(len(items) * (free // 3), dtype=torch.uint8, device="cuda")
        return block.numel()

    run = InHalves(call, what="image", lower="it", notify=told.append)
    assert len(list(run([1, 2, 3, 4]))) == 2
    assert told == ["out of memory with 4 images at once; going on with 2 at once"]
