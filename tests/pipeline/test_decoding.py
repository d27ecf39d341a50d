from __future__ import annotations

import io
import logging

import numpy as np
import pytest
import torch
from encoder_files import jpeg
from PIL import Image
from torchvision.io import decode_jpeg

from haystack.errors import HaystackError, InputError
from haystack.io.images import decode_image
from haystack.pipeline.encoders.decoding import NvjpegDecoder, PillowDecoder, Preprocessing

pytestmark = pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")
SETTINGS = {
    "input_size": (3, 64, 64),
    "mean": (0.5, 0.5, 0.5),
    "std": (0.25, 0.25, 0.25),
    "crop_pct": 1.0,
    "interpolation": "bicubic",
}
BIG = (960, 720)


@pytest.fixture(scope="module")
def preprocessing() -> Preprocessing:
    return Preprocessing.of_timm(SETTINGS)


@pytest.fixture
def on_the_device(preprocessing: Preprocessing) -> NvjpegDecoder:
    """The CPU in the device's place: torchvision's calls and all that surrounds them are real."""
    return NvjpegDecoder(preprocessing, torch.device("cpu"))


def test_draft_sizes_stay_above_the_edge() -> None:
    content = jpeg(size=BIG)
    sizes = {
        edge: decode_image(content, "a.jpg", draft_edge=edge).size
        for edge in (721, 361, 360, 91, 90)
    }
    assert sizes == {721: BIG, 361: BIG, 360: (480, 360), 91: (240, 180), 90: (120, 90)}
    png = jpeg(size=BIG, kind="PNG")
    assert decode_image(png, "a.png", draft_edge=90).size == BIG


def test_draft_pixels_differ_a_little(preprocessing: Preprocessing) -> None:
    content = jpeg(size=BIG)
    full = PillowDecoder(preprocessing).read("a.jpg", content)
    draft = PillowDecoder(preprocessing, draft=True).read("a.jpg", content)
    assert full.shape == draft.shape == (3, 64, 64)
    apart = (full.float() - draft.float()).abs()
    assert 0 < apart.mean() < 3


def test_a_draft_of_a_broken_jpeg_is_refused_too(preprocessing: Preprocessing) -> None:
    content = jpeg(size=BIG)
    with pytest.raises(InputError, match="truncated"):
        PillowDecoder(preprocessing, draft=True).read("a.jpg", content[: len(content) // 2])


def test_preprocessing_is_timms(preprocessing: Preprocessing) -> None:
    from timm.data.transforms_factory import create_transform

    picture = Image.open(io.BytesIO(jpeg()))
    whole = create_transform(**SETTINGS, is_training=False)(picture)
    pixels = PillowDecoder(preprocessing).read("a.jpg", jpeg())
    torch.testing.assert_close(preprocessing.normalise(pixels[None])[0], whole, rtol=0, atol=0)
    assert preprocessing.edge == 64


def test_the_device_takes_plain_jpegs_and_pillow_the_rest(
    on_the_device: NvjpegDecoder, preprocessing: Preprocessing, caplog: pytest.LogCaptureFixture
) -> None:
    contents = {
        "a.jpg": jpeg(),
        "b.png": jpeg(kind="PNG"),
        "grey.jpg": jpeg(mode="L"),
        "cmyk.jpg": jpeg(mode="CMYK"),
        "c.jpg": jpeg((200, 10, 10)),
        "tail.jpg": jpeg((1, 99, 1)) + b"appended",
    }
    with caplog.at_level(logging.INFO, logger="haystack"):
        items = [on_the_device.read(key, content) for key, content in contents.items()]
        on_the_device.read("again.png", contents["b.png"])
    assert [item.ndim for item in items] == [1, 3, 1, 3, 1, 3]
    assert [record.args[0] for record in caplog.records] == ["b.png", "cmyk.jpg", "tail.jpg"]  # type: ignore[index]
    assert "b.png is decoded on the CPU, as is every image like it: it is PNG" in caplog.text
    pillow = PillowDecoder(preprocessing)
    for found, content in zip(on_the_device.finish(items), contents.values(), strict=True):
        assert isinstance(found, torch.Tensor)
        expected = pillow.read("x", content)
        assert (found.dtype, found.shape) == (torch.uint8, expected.shape)
        assert (found.float() - expected.float()).abs().mean() < 1


def test_a_batch_that_the_device_refuses_is_decoded_one_by_one(
    preprocessing: Preprocessing,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    odd, good = jpeg((3, 3, 3)), jpeg()
    calls = []

    def refusing(batch: list[torch.Tensor], **options: object) -> list[torch.Tensor]:
        calls.append(len(batch))
        if any(item.numpy().tobytes() == odd for item in batch):
            raise RuntimeError("nvjpegDecode failed: 4\nmore")
        return decode_jpeg(batch, **options)

    monkeypatch.setattr("torchvision.io.decode_jpeg", refusing)
    decoder = NvjpegDecoder(preprocessing, torch.device("cpu"))
    items = [decoder.read(str(key), content) for key, content in enumerate((good, odd, good))]
    with caplog.at_level(logging.INFO, logger="haystack"):
        found = decoder.finish(items)
    assert calls == [1, 3, 1, 1, 1]
    torch.testing.assert_close(found[1], PillowDecoder(preprocessing).read("x", odd))
    assert "nvJPEG refuses it (nvjpegDecode failed: 4)" in caplog.text


def test_broken_jpegs_are_refused_as_ever(on_the_device: NvjpegDecoder) -> None:
    good = jpeg()
    for content in (good[: len(good) // 2], b"", b"hello"):
        with pytest.raises(InputError):
            on_the_device.read("a.jpg", content)
    (found,) = on_the_device.finish([torch.frombuffer(bytearray(b"hello"), dtype=torch.uint8)])
    assert isinstance(found, InputError)
    assert found.message == "not an image, or broken at its beginning"


def test_out_of_memory_is_not_taken_for_a_bad_image(
    on_the_device: NvjpegDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory.")

    item = on_the_device.read("a.jpg", jpeg())
    monkeypatch.setattr("torchvision.io.decode_jpeg", full)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        on_the_device.finish([item])


def test_a_device_that_cannot_decode_is_said_at_once(
    preprocessing: Preprocessing, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object, **__: object) -> None:
        raise RuntimeError("decode_jpegs_cuda: torchvision not compiled with nvJPEG support")

    monkeypatch.setattr("torchvision.io.decode_jpeg", missing)
    with pytest.raises(HaystackError, match=r"not compiled with nvJPEG.*embed\.decode=pillow"):
        NvjpegDecoder(preprocessing, torch.device("cpu"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_nvjpeg_agrees_with_pillow(preprocessing: Preprocessing) -> None:
    decoder = NvjpegDecoder(preprocessing, torch.device("cuda"))
    contents = [jpeg(), jpeg(mode="L"), jpeg(size=BIG), jpeg(kind="PNG")]
    found = decoder.finish([decoder.read("x", content) for content in contents])
    for pixels, content in zip(found, contents, strict=True):
        assert isinstance(pixels, torch.Tensor)
        expected = np.asarray(PillowDecoder(preprocessing).read("x", content), dtype=float)
        assert np.abs(pixels.cpu().numpy() - expected).mean() < 2
