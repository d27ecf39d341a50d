from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from haystack.errors import InputError
from haystack.pipeline import tables
from haystack.pipeline.clustering.feature_rows import (
    CentredRows,
    MemoryRows,
    SelectedRows,
    StoredRows,
)


def stored(
    folder: Path, lengths: list[int], dtype: str = "float32"
) -> tuple[list[Path], np.ndarray]:
    features = np.random.default_rng(0).normal(size=(sum(lengths), 3)).astype(dtype)
    paths, start = [], 0
    for number, length in enumerate(lengths):
        keys = tuple(f"{number}/{row}" for row in range(length))
        paths.append(folder / f"{number}.safetensors")
        part = features[start : start + length]
        tables.write_features(paths[-1], tables.Features(keys, part))
        start += length
    return paths, features


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    size=st.integers(1, 12),
    data=st.data(),
)
def test_shards_read_as_one(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], size: int, data: st.DataObject
) -> None:
    paths, features = stored(tmp_path_factory.mktemp("rows"), lengths)
    rows = StoredRows(paths)
    assert (len(rows), rows.dimension) == features.shape
    expected = [features[at : at + size] for at in range(0, len(features), size)]
    chunks = list(rows.chunks(size))
    assert [len(chunk) for chunk in chunks] == [len(part) for part in expected]
    for chunk, part in zip(chunks, expected, strict=True):
        np.testing.assert_array_equal(chunk.numpy(), part)
    everything = range(len(features))
    chosen = (
        np.array(sorted(data.draw(st.sets(st.sampled_from(everything)))), dtype=np.int64)
        if everything
        else np.empty(0, dtype=np.int64)
    )
    np.testing.assert_array_equal(rows.take(chosen).numpy(), features[chosen])
    selected = SelectedRows(rows, chosen)
    assert len(selected) == len(chosen)
    parts = [chunk.numpy() for chunk in selected.chunks(size)]
    np.testing.assert_array_equal(np.concatenate([features[:0], *parts]), features[chosen])
    half = np.arange(0, len(chosen), 2)
    np.testing.assert_array_equal(selected.take(half).numpy(), features[chosen[half]])


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_stored_type_is_kept(tmp_path: Path, dtype: str) -> None:
    paths, features = stored(tmp_path, [4, 5], dtype)
    rows = StoredRows(paths)
    for found in (*rows.chunks(3), rows.take(np.arange(9))):
        assert found.numpy().dtype == features.dtype


def test_centred_rows_have_length_one_and_no_direction_in_common(tmp_path: Path) -> None:
    paths, features = stored(tmp_path, [40, 60])
    centred = CentredRows(StoredRows(paths), 7)
    expected = features - features.mean(0)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    found = torch.cat(list(centred.chunks(33))).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(
        centred.take(np.array([3, 50])).numpy(), expected[[3, 50]], atol=1e-6
    )
    assert (len(centred), centred.dimension) == (100, 3)


def test_a_row_that_is_the_mean_stays_zero() -> None:
    found = CentredRows(MemoryRows(np.ones((3, 2), dtype=np.float32)), 2)
    assert torch.cat(list(found.chunks(3))).tolist() == [[0, 0]] * 3


def test_only_what_is_wanted_is_read(tmp_path: Path) -> None:
    """Files are mapped, so that a sample of millions of images does not read them all."""
    paths, _ = stored(tmp_path, [5, 5, 5])
    rows = StoredRows(paths)
    for path in paths[1:]:
        path.write_bytes(b"")
    assert rows.take(np.array([1, 4])).shape == (2, 3)
    with pytest.raises(InputError, match=r"1\.safetensors: cannot read this safetensors file"):
        rows.take(np.array([1, 7]))


@pytest.mark.parametrize(("width", "dtype"), [(4, "float32"), (3, "float16")])
def test_shards_of_different_encoders_are_refused(tmp_path: Path, width: int, dtype: str) -> None:
    paths, _ = stored(tmp_path, [5])
    paths.append(tmp_path / "other.safetensors")
    tables.write_features(paths[1], tables.Features(("x",), np.zeros((1, width), dtype=dtype)))
    with pytest.raises(InputError, match=r"expected features of 3 numbers, torch\.float32"):
        StoredRows(paths)


def test_no_shard_at_all_has_no_rows() -> None:
    rows = StoredRows([])
    assert len(rows) == 0
    assert list(rows.chunks(5)) == []
