"""The part of pipeline.py about embedding: decoding beside the forward pass, and what it costs."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import timm
import timm.data
import torch
from measure import Row, best_cpu_seconds, compared
from peers import Peers
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from haystack.errors import InputError
from haystack.io.datasets import BUNDLED
from haystack.pipeline.embed import embed_images
from haystack.pipeline.encoders.decoding import Decoder, NvjpegDecoder, PillowDecoder, Preprocessing
from haystack.pipeline.encoders.encoder import Encoder

_CPU_MODEL, _CUDA_MODEL = (f"vit_{size}_patch14_dinov2.lvd142m" for size in ("small", "large"))


Pictures = list[tuple[str, bytes]]


@dataclass(frozen=True)
class Sizes:
    """How much is embedded.

    Args:
        embed_images: distinct pictures, photographs of psg-mini at another size.
        embed_height, embed_width: of the pictures; SA-1B's are 1500 x 2250.
        embed_side: of the square that the encoder sees.
        embed_batch: images a forward pass.
        embed_threads: that decode, and worker processes of the DataLoader.
        embed_device_ms: an image, of the device that only waits.
        embed_repeat: the fastest of so many runs counts.
    """

    embed_images: int = 16
    embed_height: int = 1500
    embed_width: int = 2250
    embed_side: int = 224
    embed_batch: int = 4
    embed_threads: int = 2
    embed_device_ms: int = 40
    embed_repeat: int = 3


def embedding(sizes: Sizes, _: Peers, __: Path) -> list[Row]:
    """Random weights: how long a number takes does not depend on it."""
    pictures = _pictures(sizes)
    on_cpu = _encoder(_CPU_MODEL, "cpu", sizes)
    rows = [*_decoding(on_cpu, pictures, sizes), *_cpu_time(on_cpu, pictures, sizes)]
    waiting = replace(on_cpu, model=_Waiting(sizes.embed_device_ms / 1e3, on_cpu.dimension))
    name = f"a device of {sizes.embed_device_ms} ms an image (that sleeps)"
    rows += _throughput(waiting, name, pictures, sizes)
    if torch.cuda.is_available():
        rows += _on_cuda(pictures, sizes)
    return rows


PARTS: dict[str, Callable[[Any, Peers, Path], list[Row]]] = {"embedding": embedding}


def _pictures(sizes: Sizes) -> Pictures:
    found = sorted(Path(BUNDLED["psg-mini"]).parent.rglob("*.jpg"))
    made = []
    for number in range(sizes.embed_images):
        with Image.open(found[number % len(found)]) as photograph:
            picture = photograph.convert("RGB").resize((sizes.embed_width, sizes.embed_height))
        stream = io.BytesIO()
        picture.save(stream, format="JPEG", quality=90)
        made.append((f"{number}.jpg", stream.getvalue()))
    return made


def _encoder(name: str, device: str, sizes: Sizes) -> Encoder:
    model = timm.create_model(name, img_size=sizes.embed_side, num_classes=0)
    settings = timm.data.resolve_model_data_config(model)
    preprocessing = Preprocessing.of_timm(
        {**settings, "input_size": (3, sizes.embed_side, sizes.embed_side)}
    )
    precision = torch.bfloat16 if device == "cuda" else torch.float32
    return Encoder(
        model=model.eval().requires_grad_(False).to(device, precision),
        preprocessing=preprocessing,
        decoder=PillowDecoder(preprocessing),
        dimension=model.num_features,
        device=torch.device(device),
        precision=precision,
    )


class _Waiting(nn.Module):
    """Takes its time without the CPU, as an accelerator does."""

    def __init__(self, seconds: float, dimension: int) -> None:
        super().__init__()
        self._seconds = seconds
        self._dimension = dimension

    def forward(self, pixels: Tensor) -> Tensor:
        time.sleep(self._seconds * len(pixels))
        return pixels.new_zeros(len(pixels), self._dimension)


def _draft(encoder: Encoder) -> Encoder:
    return replace(encoder, decoder=PillowDecoder(encoder.preprocessing, draft=True))


def _decoding(encoder: Encoder, pictures: Pictures, sizes: Sizes) -> list[Row]:
    kilobytes = sum(len(content) for _, content in pictures) / len(pictures) / 1000
    size = f"{sizes.embed_width} x {sizes.embed_height}"

    def milliseconds(encoder: Encoder) -> float:
        def all_of_them() -> None:
            for key, content in pictures:
                encoder.read(key, content)

        return 1e3 * best_cpu_seconds(all_of_them, sizes.embed_repeat) / len(pictures)

    full = milliseconds(encoder)
    what = f"JPEG {size} decoded to {sizes.embed_side} px, draft"
    note = f"CPU time; {kilobytes:.0f} kB an image"
    draft = milliseconds(_draft(encoder))
    return [compared("embedding", what, draft, "ms/image", "full decoding", full, note=note)]


def _cpu_time(encoder: Encoder, pictures: Pictures, sizes: Sizes) -> list[Row]:
    """What threads cost, and what decoding is of it."""

    def milliseconds(encoder: Encoder, threads: int) -> float:
        seconds = best_cpu_seconds(
            lambda: _embed(encoder, pictures, sizes, threads), sizes.embed_repeat
        )
        return 1e3 * seconds / len(pictures)

    in_turn = milliseconds(encoder, 0)
    overlapped = milliseconds(encoder, sizes.embed_threads)
    watch = _Stopwatch(encoder.decoder, time.thread_time)
    start = time.process_time()
    _embed(replace(encoder, decoder=watch), pictures, sizes, 0)
    share = watch.seconds / (time.process_time() - start)
    what = f"ViT-S/14 at {sizes.embed_side} px on the CPU"
    return [
        compared(
            "embedding",
            f"{what}, decode overlapped",
            overlapped,
            "ms/image",
            "decode in turn",
            in_turn,
            note="CPU time: that of the threads",
        ),
        Row("embedding", f"{what}, share of decode", share, "of the CPU time"),
    ]


def _throughput(encoder: Encoder, name: str, pictures: Pictures, sizes: Sizes) -> list[Row]:
    """Images a second in turn, overlapped, and as PyTorch's loader does it; wall time."""
    threads = sizes.embed_threads
    in_turn, overlapped, draft, loader = _seconds(
        lambda: _embed(encoder, pictures, sizes, 0),
        lambda: _embed(encoder, pictures, sizes, threads),
        lambda: _embed(_draft(encoder), pictures, sizes, threads),
        lambda: _with_loader(encoder, pictures, sizes),
        sizes=sizes,
    )
    what = f"{name}, decode overlapped"
    note = f"wall time, {threads} threads; it needs cores that are free"
    started = "wall time, the start of its processes included"
    return [
        _row(what, overlapped, "decode in turn", in_turn, note),
        _row(what, overlapped, f"DataLoader, {threads} processes", loader, started),
        _row(f"{what}, draft", draft, "decode in turn", in_turn, note),
    ]


def _on_cuda(pictures: Pictures, sizes: Sizes) -> list[Row]:
    encoder = _encoder(_CUDA_MODEL, "cuda", sizes)
    name = f"ViT-L/14 at {sizes.embed_side} px in bfloat16 on the GPU"
    nvjpeg = replace(encoder, decoder=NvjpegDecoder(encoder.preprocessing, encoder.device))
    overlapped, on_device = _seconds(
        lambda: _embed(encoder, pictures, sizes, sizes.embed_threads),
        lambda: _embed(nvjpeg, pictures, sizes, sizes.embed_threads),
        sizes=sizes,
    )
    watch = _Stopwatch(encoder.decoder, time.perf_counter)
    start = time.perf_counter()
    _embed(replace(encoder, decoder=watch), pictures, sizes, 0)
    share = watch.seconds / (time.perf_counter() - start)
    return [
        *_throughput(encoder, name, pictures, sizes),
        Row("embedding", f"{name}, share of decode", share, "of the time", note="in turn"),
        _row(f"{name}, nvJPEG", on_device, "Pillow, overlapped", overlapped, "wall time"),
    ]


def _row(what: str, ours: float, peer: str, theirs: float, note: str) -> Row:
    """Images a second; the ratio is ours to theirs."""
    return Row("embedding", what, 1 / ours, "images/s", peer, 1 / theirs, theirs / ours, note=note)


def _embed(encoder: Encoder, pictures: Pictures, sizes: Sizes, threads: int) -> None:
    embed_images(
        pictures,
        encoder,
        batch_size=sizes.embed_batch,
        dtype="float32",
        set_aside=_refuse,
        threads=threads,
    )


def _refuse(image_key: str, reason: str) -> None:
    raise AssertionError(f"{image_key}: {reason}")


def _with_loader(encoder: Encoder, pictures: Pictures, sizes: Sizes) -> None:
    """The same work as PyTorch's own loader does it."""

    class Loaded(Dataset[Tensor]):
        def __len__(self) -> int:
            return len(pictures)

        def __getitem__(self, number: int) -> Tensor:
            return encoder.read(*pictures[number])

    loader = DataLoader(Loaded(), batch_size=sizes.embed_batch, num_workers=sizes.embed_threads)
    for batch in loader:
        encoder.encode(list(batch))


class _Stopwatch:
    """A decoder that adds up how long its first steps took."""

    def __init__(self, decoder: Decoder, clock: Callable[[], float]) -> None:
        self._decoder = decoder
        self._clock = clock
        self.seconds = 0.0

    def read(self, image_key: str, content: bytes) -> Tensor:
        start = self._clock()
        pixels = self._decoder.read(image_key, content)
        self.seconds += self._clock() - start
        return pixels

    def finish(self, batch: Sequence[Tensor]) -> list[Tensor | InputError]:
        return self._decoder.finish(batch)


def _seconds(*actions: Callable[[], None], sizes: Sizes) -> list[float]:
    """Wall time an image of each; they take turns, so that what else runs here meets them all."""
    for action in actions:
        action()
    spent: list[list[float]] = [[] for _ in actions]
    for _ in range(sizes.embed_repeat):
        for action, times in zip(actions, spent, strict=True):
            start = time.perf_counter()
            action()
            times.append((time.perf_counter() - start) / sizes.embed_images)
    return [min(times) for times in spent]
