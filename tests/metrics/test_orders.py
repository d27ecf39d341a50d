from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from haystack.metrics.functional import (
    NEVER,
    annotated_pair_ranks,
    independent_ranks,
    orders,
    tensors,
    triplet_ranks,
)

ORDERS = ("constrained", "unconstrained", "pair", "independent")


def brute(scores, pair_images, factors, pair_scores, rows, predicates):
    """Ranks of each triplet by order, from the sorted candidates."""
    products = scores if factors is None else scores * factors[:, None]
    best = scores.argmax(1)
    leading = products[np.arange(len(scores)), best] if len(scores) else np.empty(0)
    leading = leading if pair_scores is None else pair_scores
    found = {name: [] for name in (*ORDERS, "column")}
    for row, predicate in zip(rows, predicates, strict=True):
        values = dict.fromkeys(found, NEVER)
        if row >= 0:
            mine = [r for r in range(len(scores)) if pair_images[r] == pair_images[row]]
            pairs = sorted(mine, key=lambda r: (-leading[r], r))
            every = sorted(
                ((r, p) for r in mine for p in range(scores.shape[1])),
                key=lambda candidate: (-products[candidate], candidate),
            )
            values["unconstrained"] = every.index((row, predicate))
            values["pair"] = pairs.index(row)
            column = sorted(mine, key=lambda r, p=predicate: (-products[r, p], r))
            values["column"] = column.index(row)
            if best[row] == predicate:
                values["constrained"] = pairs.index(row)
                values["independent"] = [r for r in pairs if best[r] == predicate].index(row)
        for name, value in values.items():
            found[name].append(value)
    return found


def sample(seed, num_images, num_predicates, decimals, options):
    generator = np.random.default_rng(seed)
    sizes = generator.integers(0, 10, num_images)
    pair_images = np.repeat(np.arange(num_images), sizes)
    scores = generator.random((len(pair_images), num_predicates)).astype(np.float32)
    scores = scores if decimals is None else scores.round(decimals)
    factors = generator.random(len(scores)).astype(np.float32) if "factors" in options else None
    ranking = generator.random(len(scores)).astype(np.float32) if "ranking" in options else None
    images = np.sort(generator.integers(0, num_images, int(generator.integers(0, 9))))
    rows = [
        int(generator.choice(np.flatnonzero(pair_images == image)))
        if sizes[image] and generator.random() < 0.8
        else -1
        for image in images
    ]
    predicates = generator.integers(0, num_predicates, len(images))
    return scores, pair_images, factors, ranking, np.array(rows, np.int64), predicates, images


def as_tensors(scores, pair_images, factors, ranking, rows, predicates, images):
    layout = tuple(map(torch.from_numpy, (scores, pair_images, rows, predicates, images)))
    keywords = {
        "factors": None if factors is None else torch.from_numpy(factors),
        "pair_scores": None if ranking is None else torch.from_numpy(ranking),
    }
    return layout, keywords


@pytest.fixture(scope="module")
def accelerator():
    """Runs a function as on an accelerator, where shapes may not depend on values."""

    def run(function, *arguments, **keywords):
        with pytest.MonkeyPatch.context() as patch:
            for module in (orders, tensors):
                patch.setattr(module, "on_host", lambda _: False)
            return function(*arguments, **keywords)

    return run


@settings(max_examples=120)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_images=st.integers(1, 4),
    num_predicates=st.sampled_from([1, 2, 5, 19, 33]),
    decimals=st.sampled_from([0, 1, None]),
    limit=st.sampled_from([None, 1, 3, 100]),
    options=st.sets(st.sampled_from(["factors", "ranking"])),
)
def test_ranks_equal_the_sorted_candidates(
    accelerator, seed, num_images, num_predicates, decimals, limit, options
):
    data = sample(seed, num_images, num_predicates, decimals, options)
    scores, pair_images, factors, ranking, rows, predicates, _ = data
    expected = brute(scores, pair_images, factors, ranking, rows, predicates)
    layout, keywords = as_tensors(*data)
    for run in (lambda f, *a, **k: f(*a, **k), accelerator):
        ranks = run(triplet_ranks, *layout, num_images, limit=limit, **keywords)
        for name, found in zip(ORDERS, ranks, strict=True):
            for value, wanted in zip(found.tolist(), expected[name], strict=True):
                near = limit is None or wanted < limit or name == "independent"
                assert value == wanted if near else value >= limit, name
    column = independent_ranks(*layout, num_images, factors=keywords["factors"])
    assert column.tolist() == expected["column"]


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    decimals=st.sampled_from([0, 1, None]),
    options=st.sets(st.sampled_from(["factors", "ranking"])),
)
def test_ranks_among_annotated_pairs_equal_those_without_the_other_pairs(seed, decimals, options):
    data = sample(seed, 1, 3, decimals, options)
    scores, pair_images, factors, ranking, rows, predicates, _ = data
    layout, keywords = as_tensors(*data)
    annotated = sorted(set(rows.tolist()) - {-1})
    kept = [None if x is None else x[annotated] for x in (factors, ranking)]
    position = [annotated.index(row) if row >= 0 else -1 for row in rows]
    expected = brute(scores[annotated], pair_images[annotated], *kept, position, predicates)
    pair_rows = torch.tensor([*annotated, -1]).expand(len(rows), -1)
    found = annotated_pair_ranks(layout[0], layout[2], pair_rows, layout[3], **keywords)
    for name, ranks in zip(("constrained", "unconstrained"), found, strict=True):
        assert ranks.tolist() == expected[name]


def test_an_image_much_larger_than_the_others_is_ranked_too():
    # 500 objects: the floor is looked for among some of its pairs only.
    generator = torch.Generator().manual_seed(0)
    sizes = torch.tensor([249_500, *[2] * 60])
    pair_images = torch.arange(61).repeat_interleave(sizes)
    scores = torch.rand(len(pair_images), 2, generator=generator)
    rows = torch.tensor([7, 240_000, 249_500])
    predicates, images = torch.tensor([1, 0, 1]), torch.tensor([0, 0, 1])
    scores[7, 1] = scores[:249_500].flatten().topk(40).values[-1] + 1e-9  # among the first 40
    ranks = triplet_ranks(scores, pair_images, rows, predicates, images, 61, limit=50)
    own = scores[7, 1]
    ahead = (scores[:249_500] > own).sum() + (scores[:7] == own).sum() + (scores[7, 0] == own)
    assert ranks.unconstrained[0] == ahead < 50
    first = scores[:249_500].argmax(1) == 1
    best = scores[:249_500].amax(1)
    ahead = (best > own) | ((best == own) & (torch.arange(249_500) < 7))
    assert ranks.constrained[0] == ahead.sum()
    assert ranks.independent[0] == (ahead & first).sum()


def test_nothing_asks_an_accelerator_for_values(accelerator):
    # A fake tensor has a shape and no values: whoever asks for one gets an error.
    with FakeTensorMode():
        scores, pair_images = torch.rand(12, 5), torch.zeros(12, dtype=torch.int64)
        rows = predicates = images = torch.zeros(3, dtype=torch.int64)
        layout = (scores, pair_images, rows, predicates, images, 2)
        ranks = accelerator(triplet_ranks, *layout, limit=3)
        column = accelerator(independent_ranks, *layout, pairs_per_image=12)
        annotated = accelerator(annotated_pair_ranks, scores, rows, rows[:, None], predicates)
    assert {x.shape for x in (*ranks, column, *annotated)} == {(3,)}
