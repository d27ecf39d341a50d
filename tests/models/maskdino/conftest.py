"""The thin model, and this folder's helper within reach of its tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from seeded_maskdino import THIN, thin_state

from haystack.models.checkpoints.maskdino import from_state_dict


@pytest.fixture(scope="session")
def thin():
    """The thin ResNet-50 model whose outputs are known."""
    return from_state_dict(thin_state(), THIN)
