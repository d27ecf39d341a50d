"""What each kind of annotation asks of the logits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from haystack.errors import InputError
from haystack.models.relation.heads.vctree import tree_loss
from haystack.models.relation.inputs import all_pairs
from haystack.scene_graph import SceneGraph, Segment, as_triplets
from haystack.training.config import LossConfig
from haystack.training.losses import BACKGROUND, RelationTargets, object_sums, relation_sums

PREDICATES = 4
ONLY_ANNOTATED = LossConfig(background_weight=0.0)


def targets(count=3, relations=(), negatives=(), faulty=()):
    segments = tuple(Segment(i + 1, 0, 1, (0, 0, 1, 1)) for i in range(count))
    graph = SceneGraph(
        "a",
        9,
        9,
        "a.jpg",
        segments=segments,
        relations=as_triplets(relations),
        neg_relations=as_triplets(negatives),
    )
    return RelationTargets.from_graph(graph, PREDICATES, faulty)


def relation_loss(logits, annotations, config):
    return relation_sums(logits, annotations, config).means()


def row(subject, target, count=3):
    return all_pairs(count).tolist().index([subject, target])


def random_logits(rows=6, seed=0):
    torch.manual_seed(seed)
    return torch.randn(rows, PREDICATES + 1, dtype=torch.float64, requires_grad=True)


def test_a_positive_is_cross_entropy_and_several_share_it():
    logits = random_logits()
    losses = relation_loss(
        logits, [targets(relations=[(0, 1, 2), (1, 2, 0), (1, 2, 3)])], ONLY_ANNOTATED
    )
    log_p = logits.log_softmax(1)
    single = -log_p[row(0, 1), 3]
    double = -(log_p[row(1, 2), 1] + log_p[row(1, 2), 4]) / 2
    assert losses["relation"].item() == pytest.approx(((single + double) / 2).item())


def test_an_explicit_negative_lowers_its_predicate_and_asserts_no_other():
    logits = random_logits()
    annotations = [targets(negatives=[(2, 0, 1)])]
    loss = relation_loss(logits, annotations, ONLY_ANNOTATED)
    place = row(2, 0)
    probability = logits.softmax(1)[place, 2]
    assert loss["negative"].item() == pytest.approx(-torch.log1p(-probability).item())
    assert loss["relation"].item() == 0

    (gradient,) = torch.autograd.grad(loss["negative"], logits)
    assert gradient[place, 2] > 0  # descent lowers it
    assert (np.delete(gradient[place].numpy(), 2) < 0).all()  # all others gain its share
    assert gradient.abs().sum(1).nonzero().flatten().tolist() == [place]

    # The loss depends on nothing but p(predicate): moving mass among the others is free.
    with torch.no_grad():
        others = [0, 1, 3, 4]
        shuffled = logits.clone()
        shuffled[place, others] = logits[place, others[::-1]]
    again = relation_loss(shuffled, annotations, ONLY_ANNOTATED)
    assert again["negative"].item() == pytest.approx(loss["negative"].item())


def test_an_explicit_negative_stays_exact_when_the_predicate_is_nearly_certain():
    logits = torch.zeros(6, PREDICATES + 1)
    logits[row(0, 1), 3] = 60.0
    loss = relation_loss(logits, [targets(negatives=[(0, 1, 2)])], ONLY_ANNOTATED)["negative"]
    assert loss.item() == pytest.approx(60 - np.log(4), abs=1e-4)


def test_no_relation_pushes_to_its_own_output():
    logits = random_logits()
    loss = relation_loss(
        logits, [targets(negatives=[(1, 0, -1)])], LossConfig(background_weight=0.0)
    )
    expected = -logits.log_softmax(1)[row(1, 0), 0]
    assert loss["relation"].item() == pytest.approx(expected.item())
    (gradient,) = torch.autograd.grad(loss["relation"], logits)
    assert gradient[row(1, 0), 0] < 0
    assert (gradient[row(1, 0), 1:] > 0).all()


def test_an_explicit_negative_leaves_its_pair_to_all_other_predicates():
    logits = random_logits()
    loss = relation_loss(
        logits, [targets(negatives=[(1, 2, 3)])], LossConfig(background="unannotated")
    )
    (gradient,) = torch.autograd.grad(loss["relation"] + loss["negative"], logits)
    pair = gradient[row(1, 2)]
    assert pair[4] > 0
    assert (pair[:4] < 0).all()  # "no relation" is not pushed up more than its share
    share = logits.detach().softmax(1)[row(1, 2), :4]
    assert torch.allclose(pair[:4] / pair[:4].sum(), share / share.sum())
    elsewhere = gradient[[place for place in range(6) if place != row(1, 2)]]
    assert (elsewhere[:, 0] < 0).all()  # pairs that nobody looked at: towards "no relation"
    assert (elsewhere[:, 1:] > 0).all()


def test_parts_of_a_batch_add_up_to_the_whole():
    first = targets(relations=[(0, 1, 2), (1, 2, 0)], negatives=[(2, 0, 1)])
    second = targets(count=4, relations=[(0, 1, 1)], negatives=[(3, 0, -1), (1, 3, 2)])
    config = LossConfig()
    logits = random_logits(18)
    whole = relation_loss(logits, [first, second], config)
    sums = [
        relation_sums(logits[:6], [first], config),
        relation_sums(logits[6:], [second], config),
    ]
    totals = sums[0].totals + sums[1].totals
    parts = [part.means(totals) for part in sums]
    for name, value in whole.items():
        assert (parts[0][name] + parts[1][name]).item() == pytest.approx(value.item())


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("unannotated", [(0, 2), (1, 0), (2, 1)]),
        ("neither_direction", [(0, 2), (2, 1)]),
    ],
)
def test_background_rules(rule, expected):
    made = targets(relations=[(0, 1, 2)], negatives=[(2, 0, -1), (1, 2, 3)])
    weights = made.background(LossConfig(background=rule)).numpy()
    chosen = all_pairs(3)[weights > 0]
    assert [tuple(pair) for pair in chosen.tolist()] == expected


def test_pairs_of_a_faulty_segment_are_no_background():
    made = targets(relations=[(0, 1, 2)], faulty=(2,))
    weights = made.background(LossConfig(background="unannotated")).numpy()
    assert all_pairs(3)[weights > 0].tolist() == [[1, 0]]


def test_background_weighs_as_configured():
    logits = random_logits()
    made = [targets(relations=[(0, 1, 2)])]
    loss = relation_loss(logits, made, LossConfig(background="unannotated", background_weight=0.25))
    log_p = logits.log_softmax(1)
    rest = [i for i in range(6) if i != row(0, 1)]
    expected = -(log_p[row(0, 1), 3] + 0.25 * log_p[rest, 0].sum()) / (1 + 0.25 * 5)
    assert loss["relation"].item() == pytest.approx(expected.item())


def test_background_is_limited_by_what_an_image_annotates():
    config = LossConfig(background="unannotated", background_weight=0.5, background_ratio=1.5)
    one_answer = targets(count=5, negatives=[(0, 1, 2)]).background(config)
    assert one_answer.sum().item() == pytest.approx(1.5)
    assert one_answer.max().item() == pytest.approx(1.5 / 19)
    pairs = all_pairs(5).tolist()
    full = targets(count=5, relations=[(s, o, 0) for s, o in pairs[:12]]).background(config)
    assert full[:12].tolist() == [0] * 12
    assert full[12:].tolist() == [0.5] * 8
    assert targets().background(config).sum() == 0


def test_an_image_without_anything_to_say_gives_zero():
    loss = relation_loss(random_logits(), [targets()], ONLY_ANNOTATED)
    assert loss["relation"].item() == 0
    assert loss["negative"].item() == 0


def test_a_relation_of_an_object_with_itself_is_left_out():
    made = targets(relations=[(1, 1, 0)])
    assert not made.positive.any()


def test_a_predicate_beyond_the_model_is_refused():
    with pytest.raises(InputError, match=r"a: expected predicates below 4, got 4"):
        targets(relations=[(0, 1, 4)])


def test_tree_loss_is_the_mean_over_images_of_the_mean_over_their_entries():
    logits = torch.tensor([[[2.0, -1.0], [0.5, 0.0]], [[3.0, 9.0], [9.0, 9.0]]])
    related = torch.zeros(2, 2, 2, dtype=torch.bool)
    related[0, 0, 1] = related[0, 1, 0] = True
    present = torch.tensor([[True, True], [True, False]])
    first = np.mean(
        [
            np.log1p(np.exp(2.0)),
            np.log1p(np.exp(1.0)),
            np.log1p(np.exp(-0.5)),
            np.log(2),
        ]
    )
    second = np.log1p(np.exp(3.0))
    loss = tree_loss(logits, related, present)
    assert loss.item() == pytest.approx((first + second) / 2, abs=1e-6)


def test_detections_have_what_is_said_of_the_objects_that_they_are_matched_with():
    annotated = targets(
        relations=[(0, 1, 2), (1, 2, 0)], negatives=[(2, 0, 1), (2, 1, -1)], faulty=(1,)
    )
    order = torch.tensor([2, 0, 1])
    moved = annotated.of_detections(order)
    place = {int(old): new for new, old in enumerate(order)}
    for old, (subject, target) in enumerate(all_pairs(3).tolist()):
        new = row(place[subject], place[target])
        for name in ("positive", "negative", "no_relation", "unsure"):
            assert torch.equal(getattr(moved, name)[new], getattr(annotated, name)[old]), name
    assert torch.equal(moved.related, annotated.related[order][:, order])
    assert moved.classified.tolist() == [True, True, False]

    some = annotated.of_detections(torch.tensor([0, BACKGROUND, 1, 0]))
    at = {tuple(pair): number for number, pair in enumerate(all_pairs(4).tolist())}
    assert some.positive.nonzero().tolist() == [[at[0, 2], 2], [at[3, 2], 2]]
    assert some.labels.tolist() == [0, BACKGROUND, 0, 0]
    weights = some.background(LossConfig(background="unannotated"))
    assert weights[at[0, 1]] > 0  # a false detection is related to nothing
    assert weights[at[0, 3]] == 0  # twice the same object
    assert some.related.nonzero().tolist() == [[0, 2], [2, 0], [2, 3], [3, 2]]


def test_object_loss_is_the_mean_cross_entropy_over_known_classes():
    torch.manual_seed(0)
    logits = torch.randn(7, 4, requires_grad=True)
    first = targets(faulty=(1,))
    second = targets(count=3).of_detections(torch.tensor([2, BACKGROUND, 0, 1]))
    sums = object_sums(logits, [first, second], LossConfig(object_weight=0.5))
    log_p = logits.log_softmax(1)
    chosen = [(0, 1), (2, 1), (3, 1), (4, 0), (5, 1), (6, 1)]  # class 0 is column 1
    expected = -0.5 * sum(log_p[row] for row in chosen) / len(chosen)
    means = sums.means()
    assert means["object"].item() == pytest.approx(expected.item())
    (gradient,) = torch.autograd.grad(means["object"], logits)
    assert gradient[1].abs().sum() == 0
