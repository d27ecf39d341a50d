"""MaskDINO against numbers that the official implementation produced, and its checkpoints."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from seeded_maskdino import DATA, THIN, official_shapes, thin_state

from haystack.errors import InputError
from haystack.models.checkpoints.maskdino import from_state_dict
from haystack.models.maskdino.deformable_attention import sample_by_grid, sample_by_rows
from haystack.models.maskdino.panoptic import PanopticSettings, kept_queries, merge

MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)


@pytest.fixture(scope="module")
def weights():
    return thin_state()


def test_outputs_are_those_of_the_official_implementation(weights):
    with np.load(DATA / "forward_thin_r50.npz") as stored:
        oracle = {name: torch.from_numpy(stored[name]) for name in stored.files}
    image = oracle["image"].float()
    image = (image - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
    padded = F.pad(image, (0, 160 - 150, 0, 128 - 100))[None]
    with torch.inference_mode():
        found = from_state_dict(weights, THIN)(padded)
    torch.testing.assert_close(found.logits[0], oracle["pred_logits"], rtol=0, atol=1e-5)
    torch.testing.assert_close(found.boxes[0], oracle["pred_boxes"], rtol=0, atol=2e-6)
    torch.testing.assert_close(found.mask_logits(0), oracle["pred_masks"], rtol=0, atol=2e-4)


def test_segments_are_those_of_the_official_implementation():
    with np.load(DATA / "postprocess.npz") as stored:
        logits, masks = (torch.from_numpy(stored[name]) for name in ("mask_cls", "mask_pred"))
        id_map, segments = stored["panoptic_seg"], stored["segments_info"]
    settings = PanopticSettings()
    queries = kept_queries(logits, settings)
    assert len(queries) == 39
    found = merge(
        logits[queries], lambda n: masks[queries[n]], (48, 64), things=80, settings=settings
    )
    np.testing.assert_array_equal(found.id_map, id_map)
    rows = [[one.id, one.category, int(one.is_thing)] for one in found.segments]
    assert rows == segments.tolist()


@pytest.mark.parametrize("backbone", ["resnet50", "swin_large"])
def test_official_names_and_shapes_load_strictly(backbone):
    """Numbers do not matter here: every tensor is one repeated number, and takes no memory."""
    from haystack.models.maskdino.swin import relative_positions

    tensors = {
        name: relative_positions()
        if name.endswith("relative_position_index")
        else torch.zeros((), dtype=kind).expand(shape)
        for name, (shape, kind) in official_shapes(backbone).items()
    }
    assert len(tensors) == {"resnet50": 720, "swin_large": 816}[backbone]
    assert from_state_dict(tensors).config.backbone == backbone
    victim = "sem_seg_head.predictor.decoder.layers.4.linear1.weight"
    shape = list(tensors[victim].shape)
    without = {name: tensor for name, tensor in tensors.items() if name != victim}
    with pytest.raises(InputError, match=f"missing {victim}$"):
        from_state_dict(without)
    with pytest.raises(InputError, match=r"unexpected stranger$"):
        from_state_dict({**tensors, "stranger": torch.zeros(1)})
    with pytest.raises(InputError) as caught:
        from_state_dict({**tensors, victim: torch.zeros(2, 3)})
    assert str(caught.value).count(" of shape ") == 1
    assert victim in str(caught.value)
    assert str(shape) in str(caught.value)


def test_copies_that_differ_are_refused(weights):
    alias = "sem_seg_head.predictor.decoder.norm.bias"
    with pytest.raises(InputError, match=f"{alias} differs from"):
        from_state_dict({**weights, alias: weights[alias] + 1}, THIN)


def sample_one_by_one(values, sizes, places, weights):
    """Bilinear interpolation as it is defined: place after place, corner after corner."""
    batch, _, heads, channels = values.shape
    queries = places.shape[1]
    levels = values.split([prod(size) for size in sizes], dim=1)
    rows = []
    for b, q, m in np.ndindex(batch, queries, heads):
        total = values.new_zeros(channels)
        for level, (height, width) in enumerate(sizes):
            for point in range(places.shape[4]):
                x, y = places[b, q, m, level, point] * places.new_tensor([width, height]) - 0.5
                column, row = int(x.floor()), int(y.floor())
                for c in (column, column + 1):
                    for r in (row, row + 1):
                        if 0 <= c < width and 0 <= r < height:
                            share = (1 - (x - c).abs()) * (1 - (y - r).abs())
                            seen = levels[level][b, r * width + c, m]
                            total = total + weights[b, q, m, level, point] * share * seen
        rows.append(total)
    return torch.stack(rows).view(batch, queries, heads * channels)


@pytest.mark.parametrize("sample", [sample_by_grid, sample_by_rows])
def test_sampling_is_that_of_a_loop_and_so_are_its_gradients(sample):
    generator = torch.Generator().manual_seed(0)
    sizes = [(3, 5), (2, 2), (1, 4)]
    shapes = (2, sum(prod(size) for size in sizes), 2, 3), (2, 4, 2, 3, 2, 2), (2, 4, 2, 3, 2)
    values, places, weights = (
        torch.rand(shape, generator=generator, dtype=torch.float64) for shape in shapes
    )
    places = places * 1.6 - 0.3  # some lie outside
    inputs = [tensor.requires_grad_() for tensor in (values, places, weights)]

    def outcome(function):
        result = function(values, sizes, places, weights)
        upstream = torch.linspace(-1, 1, result.numel(), dtype=torch.float64).view_as(result)
        return result, torch.autograd.grad((result * upstream).sum(), inputs)

    expected, slopes = outcome(sample_one_by_one)
    found, found_slopes = outcome(sample)
    torch.testing.assert_close(found, expected)
    for one, other in zip(found_slopes, slopes, strict=True):
        torch.testing.assert_close(one, other)
