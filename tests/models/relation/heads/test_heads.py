"""All heads alike: batches, single objects, many objects, orders, guessed classes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from haystack.errors import InputError
from haystack.models.relation.batch import SceneBatch
from haystack.models.relation.config import HEADS
from haystack.models.relation.heads import build_head
from haystack.models.relation.heads.base import HeadDims
from haystack.models.relation.heads.objects import sum_by
from haystack.models.relation.inputs import all_pairs

DIMS = HeadDims(
    num_objects=9,
    num_predicates=4,
    roi_dim=10,
    embed_dim=5,
    hidden_dim=6,
    pooling_dim=7,
    side_dim=4,
)


@pytest.fixture(params=HEADS)
def head(request):
    return make_head(request.param)


def make_head(name, dims=DIMS):
    torch.manual_seed(1)
    head = build_head(name, dims)
    with torch.no_grad():
        for module in head.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2)
    return head.eval()


def make_scene(count, seed, *, guessed=False):
    """A batch of one image and its features."""
    generator = torch.Generator().manual_seed(seed)
    low = torch.rand(count, 2, generator=generator) * 60
    boxes = torch.cat([low, low + torch.rand(count, 2, generator=generator) * 40], dim=1)
    pairs = torch.from_numpy(all_pairs(count))
    scores = torch.rand(count, DIMS.num_objects, generator=generator).softmax(1)
    batch = SceneBatch(
        labels=scores.argmax(1),
        boxes=boxes,
        sizes=torch.tensor([[90.0, 110.0]]),
        counts=(count,),
        pairs=pairs,
        pair_counts=(len(pairs),),
        class_scores=scores if guessed else None,
    )
    objects = torch.randn(count, DIMS.roi_dim, generator=generator)
    unions = torch.randn(len(pairs), DIMS.roi_dim, generator=generator)
    return batch, objects, unions


def together(scenes):
    """Several of them as one batch."""
    batches, objects, unions = zip(*scenes, strict=True)
    first, pairs = 0, []
    for batch in batches:
        pairs.append(batch.pairs + first)
        first += batch.counts[0]
    guessed = batches[0].class_scores is not None
    merged = SceneBatch(
        labels=torch.cat([batch.labels for batch in batches]),
        boxes=torch.cat([batch.boxes for batch in batches]),
        sizes=torch.cat([batch.sizes for batch in batches]),
        counts=tuple(batch.counts[0] for batch in batches),
        pairs=torch.cat(pairs),
        pair_counts=tuple(batch.pair_counts[0] for batch in batches),
        class_scores=torch.cat([batch.class_scores for batch in batches]) if guessed else None,
    )
    return merged, torch.cat(objects), torch.cat(unions)


def check_batched_equals_single(head, scenes):
    with torch.no_grad():
        output = head(*together(scenes))
        alone = [head(*scene) for scene in scenes]
    expected = torch.cat([one.logits for one in alone])
    torch.testing.assert_close(output.logits, expected, rtol=1e-5, atol=1e-5)
    if scenes[0][0].class_scores is None:
        assert output.object_logits is None
    else:
        classes = torch.cat([one.object_logits for one in alone])
        torch.testing.assert_close(output.object_logits, classes, rtol=1e-5, atol=1e-5)
    if output.tree_logits is not None:
        for image, one in enumerate(alone):
            count = scenes[image][0].counts[0]
            table = output.tree_logits[image, :count, :count]
            torch.testing.assert_close(table, one.tree_logits[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("guessed", [False, True], ids=["given", "guessed"])
@pytest.mark.parametrize("seed", range(3))
def test_a_batch_gives_what_its_images_give(head, guessed, seed):
    generator = torch.Generator().manual_seed(seed)
    counts = [*torch.randint(1, 61, (5,), generator=generator).tolist(), 1, 60, 2]
    scenes = [make_scene(count, 10 * seed + i, guessed=guessed) for i, count in enumerate(counts)]
    check_batched_equals_single(head, scenes)


@pytest.mark.parametrize("guessed", [False, True], ids=["given", "guessed"])
def test_one_object_has_no_pairs_but_a_class(head, guessed):
    for scenes in ([make_scene(1, 0, guessed=guessed)], [make_scene(1, i) for i in range(3)]):
        output = head(*together(scenes))
        assert output.logits.shape == (0, 5)
    output = head(*make_scene(1, 0, guessed=guessed))
    if guessed:
        assert output.object_logits.shape == (1, 10)
        assert output.object_logits.isfinite().all()


def test_two_hundred_objects_beside_few(head):
    scenes = [make_scene(count, count, guessed=True) for count in (3, 200)]
    check_batched_equals_single(head, scenes)


@pytest.mark.parametrize("guessed", [False, True], ids=["given", "guessed"])
def test_the_order_of_objects_does_not_matter(head, guessed):
    """Without ties: pairs and objects in another order get the same numbers."""
    batch, objects, unions = make_scene(11, 4, guessed=guessed)
    order = torch.randperm(11, generator=torch.Generator().manual_seed(0))
    shuffled = replace(
        batch,
        labels=batch.labels[order],
        boxes=batch.boxes[order],
        class_scores=None if batch.class_scores is None else batch.class_scores[order],
    )
    table = torch.zeros(11, 11, dtype=torch.int64)
    table[batch.pairs[:, 0], batch.pairs[:, 1]] = torch.arange(110)
    rows = table[order[batch.pairs[:, 0]], order[batch.pairs[:, 1]]]
    with torch.no_grad():
        straight = head(batch, objects, unions)
        mixed = head(shuffled, objects[order], unions[rows])
    torch.testing.assert_close(mixed.logits, straight.logits[rows], rtol=1e-5, atol=1e-5)
    if guessed:
        expected = straight.object_logits[order]
        torch.testing.assert_close(mixed.object_logits, expected, rtol=1e-5, atol=1e-5)


IDLE = {
    "vctree": ("context_layer.decoder_rnn.",),
    "motifs": ("context_layer.decoder_rnn.",),
    "gpsnet": ("context_layer.out_obj.",),
    "imp": ("context_layer.obj_fc.",),
}


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("guessed", [False, True], ids=["given", "guessed"])
def test_only_guessed_classes_reach_the_part_that_classifies(name, guessed):
    head = make_head(name).train()
    output = head(*together([make_scene(count, count, guessed=guessed) for count in (5, 8)]))
    outputs = [output.logits, output.tree_logits, output.object_logits]
    sum(values.square().sum() for values in outputs if values is not None).backward()
    idle = {key for key, parameter in head.named_parameters() if parameter.grad is None}
    if guessed:
        assert not idle
    else:
        assert idle == {key for key, _ in head.named_parameters() if key.startswith(IDLE[name])}


@pytest.mark.parametrize("name", HEADS)
def test_a_head_without_that_part_has_no_weights_for_it_and_refuses_guesses(name):
    bare = make_head(name, replace(DIMS, classifies_objects=False))
    full = make_head(name)
    assert set(full.state_dict()) - set(bare.state_dict()) == {
        key for key in full.state_dict() if key.startswith(IDLE[name])
    }
    bare.load_state_dict({k: v for k, v in full.state_dict().items() if k in bare.state_dict()})
    scene = make_scene(6, 2)
    assert torch.equal(bare(*scene).logits, full(*scene).logits)
    with pytest.raises(InputError, match=r"cannot classify objects.*classifies_objects=true"):
        bare(*make_scene(6, 2, guessed=True))


def test_a_certain_guess_is_the_class_itself(head):
    """In the first round of context, whose tables are class_embeddings; IMP reads no classes."""
    batch, objects, unions = make_scene(7, 3)
    certain = replace(
        batch, class_scores=nn.functional.one_hot(batch.labels, DIMS.num_objects).float()
    )
    uniform = replace(batch, class_scores=torch.full((7, DIMS.num_objects), 1 / DIMS.num_objects))
    with torch.no_grad():
        for parameter in head.context_layer.modules():
            if isinstance(parameter, nn.Embedding) and parameter is not first_table(head):
                parameter.weight.zero_()
        given, sure, unsure = (
            head(one, objects, unions).logits for one in (batch, certain, uniform)
        )
    torch.testing.assert_close(sure, given, rtol=1e-5, atol=1e-5)
    assert torch.allclose(unsure, given, atol=1e-5) == (not head.class_embeddings())


def first_table(head):
    tables = head.class_embeddings()
    return tables[0] if tables else None


@pytest.mark.parametrize(
    ("name", "tables"), [("vctree", 2), ("motifs", 2), ("gpsnet", 1), ("imp", 0)]
)
def test_class_embeddings_are_those_of_the_classes(name, tables):
    found = make_head(name).class_embeddings()
    assert [table.weight.shape for table in found] == [(10, 5)] * tables


@pytest.mark.parametrize("guessed", [False, True], ids=["given", "guessed"])
def test_mixed_precision_stays_near(head, guessed):
    scene = together([make_scene(count, count, guessed=guessed) for count in (6, 1, 9)])
    for training in (False, True):
        head.train(training)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = head(*scene)
        assert output.logits.isfinite().all()
        output.logits.float().square().sum().backward()
        assert all(
            parameter.grad.isfinite().all()
            for parameter in head.parameters()
            if parameter.grad is not None
        )


def test_sums_of_rows_by_index_are_those_of_a_loop():
    index = torch.tensor([3, 0, 3, 1, 3])
    values = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    summed = sum_by(index, values, 6)
    expected = torch.zeros(6, 2, dtype=torch.float64)
    for row, place in enumerate(index.tolist()):
        expected[place] += values[row].detach()
    torch.testing.assert_close(summed.detach(), expected, rtol=0, atol=1e-15)
    assert torch.autograd.gradcheck(lambda rows: sum_by(index, rows, 6), (values,))
    assert torch.equal(sum_by(index[:0], values[:0], 2), torch.zeros(2, 2))


def test_gpsnet_survives_attention_that_vanishes():
    """A sigmoid of every pair of an object may be 0 in float32; their shares are not."""
    head = make_head("gpsnet")
    scene = make_scene(5, 1)
    with torch.no_grad():
        head.context_layer.w.weight.zero_()
        head.context_layer.w.bias.fill_(-1e4)
        vanished = head(*scene).logits
        head.context_layer.w.bias.fill_(0.0)
        even = head(*scene).logits
    torch.testing.assert_close(vanished, even)


def test_gpsnet_hears_pairs_that_are_not_scored_with_the_logit_zero():
    head = make_head("gpsnet")
    with torch.no_grad():
        head.context_layer.w.weight.zero_()
        head.context_layer.w.bias.fill_(0.0)
    batch, objects, unions = make_scene(5, 1)
    some = replace(batch, pairs=batch.pairs[::3], pair_counts=(7,))
    with torch.no_grad():
        expected = head(batch, objects, unions).logits[::3]
        torch.testing.assert_close(head(some, objects, unions[::3]).logits, expected)
