from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from encoder_files import jpeg, needs_small_encoder

from haystack.errors import HaystackError, InputError
from haystack.io.images import Content
from haystack.pipeline.config import EmbedConfig
from haystack.pipeline.embed import embed_images
from haystack.pipeline.encoders.encoder import SMALL_ENCODER, find_encoder
from haystack.pipeline.jobs.embed import decoding_threads
from haystack.pipeline.tables import Features

Reasons = list[tuple[str, str]]


class Counting:
    """The feature of an image is its number; even numbers only are good."""

    dimension = 1

    def __init__(self, *, late: bool = False) -> None:
        self.late = late
        self.batches: list[list[int]] = []

    def read(self, image_key: str, content: bytes) -> torch.Tensor:
        number = int(content)
        if number % 3 == 0 and not self.late:
            raise InputError("odd", path=image_key)
        return torch.tensor([float(number)])

    def encode(self, batch: Sequence[torch.Tensor]) -> list[torch.Tensor | InputError]:
        self.batches.append([int(item) for item in batch])
        bad = self.late
        return [InputError("late") if bad and int(item) % 3 == 0 else item for item in batch]


def numbered(count: int) -> list[tuple[str, Content]]:
    """Every fifth cannot be read."""
    return [
        (f"{n}.jpg", InputError("unreadable") if n % 5 == 4 else str(n).encode())
        for n in range(count)
    ]


def embed(
    images: Sequence[tuple[str, Content]] | Iterator[tuple[str, Content]],
    encoder: object,
    **options: object,
) -> tuple[Features, Reasons]:
    reasons: Reasons = []
    options = {"batch_size": 4, "dtype": "float32", "threads": 0, **options}
    found = embed_images(
        images,
        encoder,  # type: ignore[arg-type]
        set_aside=lambda *row: reasons.append(row),
        **options,  # type: ignore[arg-type]
    )
    return found, reasons


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("threads", [0, 1, 5])
@pytest.mark.parametrize("batch_size", [1, 4, 100])
def test_order_and_reasons_depend_on_nothing_else(
    late: bool, threads: int, batch_size: int
) -> None:
    encoder = Counting(late=late)
    found, reasons = embed(numbered(23), encoder, threads=threads, batch_size=batch_size)
    good = [n for n in range(23) if n % 3 and n % 5 != 4]
    assert found.features[:, 0].tolist() == good
    assert found.image_keys == tuple(f"{n}.jpg" for n in good)
    bad = [(f"{n}.jpg", "unreadable") for n in range(4, 23, 5)]
    odd = [(f"{n}.jpg", "late" if late else "odd") for n in range(0, 23, 3) if n % 5 != 4]
    assert sorted(reasons) == sorted(bad + odd)
    if not late:
        assert reasons == sorted(bad + odd, key=lambda row: int(row[0][:-4]))
    _, alone = embed(numbered(23), same := Counting(late=late), batch_size=batch_size)
    assert same.batches == encoder.batches, "batches are the same whatever the threads do"
    assert alone == reasons


@needs_small_encoder
def test_features_do_not_depend_on_threads() -> None:
    encoder = find_encoder(EmbedConfig(encoder=SMALL_ENCODER, image_size=98)).load()
    images = [(str(n), jpeg((7 * n, 90, 9), (120 + n, 150))) for n in range(11)]
    plain, _ = embed(images, encoder)
    for threads in (1, 3):
        found, _ = embed(images, encoder, threads=threads)
        np.testing.assert_array_equal(found.features, plain.features)
    # Rounding may follow the size of a batch; nothing else does.
    for batch_size in (1, 3, 11):
        found, _ = embed(images, encoder, threads=2, batch_size=batch_size)
        np.testing.assert_allclose(found.features, plain.features, atol=1e-5, rtol=1e-4)


def test_decoding_goes_on_while_a_batch_is_encoded() -> None:
    decoded = threading.Event()

    class Waiting(Counting):
        def read(self, image_key: str, content: bytes) -> torch.Tensor:
            if int(content) == 3:
                decoded.set()
            return torch.tensor([float(content)])

        def encode(self, batch: Sequence[torch.Tensor]) -> list[torch.Tensor | InputError]:
            assert decoded.wait(10), "image 3 is of the next batch and waits for this one"
            return list(batch)

    images = [(str(n), str(n).encode()) for n in range(4)]
    found, _ = embed(images, Waiting(), threads=1, batch_size=2)
    assert found.features[:, 0].tolist() == [0, 1, 2, 3]


def test_no_more_than_two_batches_are_in_memory() -> None:
    encoder = Counting()
    read = 0

    def images() -> Iterator[tuple[str, Content]]:
        nonlocal read
        for number in range(1, 200, 3):
            read += 1
            yield str(number), str(number).encode()
            encoded = sum(map(len, encoder.batches))
            assert read <= encoded + 2 * 4 + 2

    found, _ = embed(images(), encoder, threads=2)
    assert len(found.features) == 67


@needs_small_encoder
def test_corrupt_image_is_set_aside_and_the_rest_goes_on() -> None:
    encoder = find_encoder(EmbedConfig(encoder=SMALL_ENCODER)).load()
    good = jpeg((10, 200, 60))
    images = [
        ("a.jpg", good),
        ("cut.jpg", good[: len(good) // 2]),
        ("no.jpg", b""),
        ("b.jpg", good),
    ]
    found, reasons = embed(images, encoder, batch_size=1, dtype="float16")
    assert found.image_keys == ("a.jpg", "b.jpg")
    assert found.features.shape == (2, 1280)
    assert found.features.dtype == np.float16
    assert [key for key, _ in reasons] == ["cut.jpg", "no.jpg"]
    assert "broken" in reasons[0][1]
    assert "empty" in reasons[1][1]


def test_processes_of_one_machine_share_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert decoding_threads() == torch.get_num_threads()
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)), raising=False)
    for processes, threads in ((1, 16), (4, 4), (20, 1)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
        assert decoding_threads() == threads


def test_no_images_give_no_features() -> None:
    found, _ = embed([], Counting())
    assert found.features.shape == (0, 1)
    assert found.features.dtype == np.float32


def test_features_that_are_not_finite_are_an_error() -> None:
    class Overflowing(Counting):
        def encode(self, batch: Sequence[torch.Tensor]) -> list[torch.Tensor | InputError]:
            return [torch.full((1,), 1e6)] * len(batch)

    images = [("a.jpg", b"1")]
    embed(images, Overflowing())
    with pytest.raises(HaystackError, match=r"not finite in float16, first for the image a\.jpg"):
        embed(images, Overflowing(), dtype="float16")
