from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from seeded_maskdino import DATA, THIN

from haystack.errors import InputError
from haystack.models.maskdino.config import MaskDINOConfig
from haystack.models.maskdino.network import MaskDINO
from haystack.models.maskdino.preprocessing import to_batch


@pytest.fixture(scope="module")
def known():
    with np.load(DATA / "forward_thin_r50.npz") as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}


@pytest.fixture(scope="module")
def batch(known):
    return to_batch([known["image"]], torch.device("cpu"))


def test_the_official_implementations_outputs(thin, known, batch):
    """From a picture of 100 x 150 pixels, padded to 128 x 160, on."""
    assert batch.shape == (1, 3, 128, 160)
    with torch.inference_mode():
        output = thin(batch)
    torch.testing.assert_close(output.logits[0], known["pred_logits"], rtol=0, atol=1e-5)
    torch.testing.assert_close(output.mask_logits(0), known["pred_masks"], rtol=0, atol=2e-4)
    torch.testing.assert_close(output.boxes[0], known["pred_boxes"], rtol=0, atol=2e-6)


def test_single_masks_are_those_of_all(thin, batch):
    with torch.inference_mode():
        output = thin(batch)
    chosen = torch.tensor([3, 17])
    torch.testing.assert_close(output.mask_logits(0, chosen), output.mask_logits(0)[chosen])


def test_a_batch_gives_what_its_pictures_give(thin, batch):
    other = batch.flip(3)
    with torch.inference_mode():
        both = thin(torch.cat([batch, other]))
        for number, alone in enumerate((thin(batch), thin(other))):
            torch.testing.assert_close(both.logits[number], alone.logits[0], rtol=0, atol=2e-5)
            torch.testing.assert_close(both.boxes[number], alone.boxes[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["bitmask", "mask2box"])
def test_mask_enhanced_boxes_change_where_the_decoder_starts(thin, batch, kind):
    other = MaskDINO(replace(THIN, box_initialisation=kind))
    other.load_state_dict(thin.state_dict(), assign=True)
    with torch.inference_mode():
        plain, enhanced = thin(batch), other.eval()(batch)
    # The same tokens are chosen; what the decoder makes of them differs.
    assert (plain.boxes - enhanced.boxes).abs().max() > 1e-2
    assert torch.isfinite(enhanced.logits).all()


def test_autocast_reaches_the_backbone_alone(thin, batch):
    with torch.inference_mode():
        plain = thin(batch)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            lower = thin(batch)
            assert thin.backbone.conv1(batch).dtype == torch.bfloat16
    assert lower.logits.dtype == lower.mask_features.dtype == torch.float32
    apart = (lower.mask_features - plain.mask_features).abs().max()
    assert 0 < apart < 0.1 * plain.mask_features.abs().max()


def test_the_whole_network_is_one_graph(thin, batch):
    """``torch.compile`` finds nothing that it must leave to Python."""
    compiled = torch.compile(thin, backend="eager", fullgraph=True, dynamic=False)
    with torch.inference_mode():
        torch.testing.assert_close(compiled(batch).logits, thin(batch).logits)


def test_too_few_tokens(thin):
    other = MaskDINO(replace(THIN, queries=86))
    other.load_state_dict(thin.state_dict(), assign=True)
    with pytest.raises(InputError, match=r"chooses 86 queries .* has only 85; enlarge"):
        other(torch.zeros(1, 3, 64, 64))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"backbone": "resnet101"}, "backbone expects one of resnet50, swin_large"),
        ({"box_initialisation": "mask"}, "box_initialisation expects one of no, bitmask"),
        ({"queries": 0}, "queries must be at least 1, got 0"),
    ],
)
def test_configurations_that_are_none(changes, message):
    with pytest.raises(InputError, match=message):
        MaskDINOConfig(**changes)
