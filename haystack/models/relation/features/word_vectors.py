"""Word vectors of class names: what lets a class with few examples borrow from its neighbours."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

WIDTH = 50
"""Numbers per name."""

_FILE = Path(__file__).parents[3] / "data" / "word_vectors" / "glove6b_50d_psg189.npz"


def name_vectors(names: Sequence[str]) -> npt.NDArray[np.float32]:
    """Vectors of names, centred and scaled to unit variance over the bundled table.

    GloVe 6B, 50 dimensions (Pennington et al., 2014), for the names of PSG's vocabulary. A name
    that the table lacks gets a normal vector drawn from a seed made of the name: distinct, the
    same on every machine, and without meaning.

    Returns:
        float32 [len(names), WIDTH].
    """
    table = _table()
    rows = [table[name] if name in table else _drawn(name) for name in names]
    return np.stack(rows).astype(np.float32)


@cache
def _table() -> dict[str, npt.NDArray[np.float32]]:
    with np.load(_FILE, allow_pickle=False) as stored:
        vectors = (stored["vec"] - stored["vec"].mean(0)) / stored["vec"].std()
        return dict(zip(stored["names"].tolist(), vectors, strict=True))


def _drawn(name: str) -> npt.NDArray[np.float32]:
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    return np.random.default_rng(seed).standard_normal(WIDTH).astype(np.float32)
