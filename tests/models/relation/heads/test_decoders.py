"""Object decoders against one object at a time, and the order in which MOTIFS visits objects."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from haystack.models.relation.batch import SceneBatch
from haystack.models.relation.heads.base import HeadDims
from haystack.models.relation.heads.decoders import SequenceDecoder, TreeDecoder
from haystack.models.relation.heads.sequences import from_right_to_left
from haystack.models.relation.heads.trees import build_trees

DIMS = HeadDims(num_objects=7, num_predicates=3, embed_dim=4, hidden_dim=6, decoder_dropout=0.0)
WIDTH = 5


def make_batch(counts, seed=0, *, coarse=False):
    generator = torch.Generator().manual_seed(seed)
    total = sum(counts)
    low = torch.randint(0, 4 if coarse else 10_000, (total, 2), generator=generator).float()
    return SceneBatch(
        labels=torch.randint(DIMS.num_objects, (total,), generator=generator),
        boxes=torch.cat([low, low + 3], dim=1),
        sizes=torch.full((len(counts), 2), 50.0),
        counts=tuple(counts),
        pairs=torch.zeros(0, 2, dtype=torch.int64),
        pair_counts=(0,) * len(counts),
    )


def make_trees(batch, seed=0):
    size = max(batch.counts)
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(len(batch.counts), size, size, generator=generator)
    return build_trees(scores, batch.present)


def make_decoder(kind, dims=DIMS):
    torch.manual_seed(2)
    decoder = kind(WIDTH, dims).double()
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return decoder.eval()


def structure_of(decoder, batch):
    return make_trees(batch) if isinstance(decoder, TreeDecoder) else from_right_to_left(batch)


def inputs_of(batch, seed=5):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(len(batch.labels), WIDTH, generator=generator, dtype=torch.float64)


def tree_decoded(decoder, inputs, trees):
    """Node by node, from the roots."""
    cell = decoder.decoderLSTM
    zero = torch.zeros(DIMS.hidden_dim, dtype=inputs.dtype)
    known = {-1: (zero, zero, decoder.obj_embed.weight[0])}
    logits = [None] * len(inputs)
    for node in trees.order.tolist():
        hidden, memory, told = known[int(trees.parent[node])]
        x = torch.cat([inputs[node], told])
        i, o, f, u, r = (cell.iofux(x) + cell.iofuh(hidden)).chunk(5)
        memory = i.sigmoid() * u.tanh() + f.sigmoid() * memory
        hidden = r.sigmoid() * o.sigmoid() * memory.tanh() + (1 - r.sigmoid()) * cell.px(x)
        logits[node] = decoder.out(hidden)
        # Row 0 is the start and row 1 the background.
        best = int(logits[node][1:].argmax())
        known[node] = hidden, memory, decoder.obj_embed.weight[best + 2]
    return torch.stack(logits)


def sequence_decoded(decoder, inputs, batch):
    """Image by image, object by object."""
    logits = [None] * len(inputs)
    first = 0
    for count in batch.counts:
        hidden = memory = torch.zeros(DIMS.hidden_dim, dtype=inputs.dtype)
        told = decoder.obj_embed.weight[0]
        centres = batch.boxes[first : first + count, [0, 2]].sum(1).tolist()
        for row in sorted(range(count), key=lambda k: -centres[k]):
            x = decoder.input_linearity(torch.cat([inputs[first + row], told]))
            s = decoder.state_linearity(hidden)
            i, f, u, o, r = (x[: 5 * DIMS.hidden_dim] + s).chunk(5)
            memory = i.sigmoid() * u.tanh() + f.sigmoid() * memory
            hidden = r.sigmoid() * o.sigmoid() * memory.tanh()
            hidden = hidden + (1 - r.sigmoid()) * x[5 * DIMS.hidden_dim :]
            logits[first + row] = decoder.out_obj(hidden)
            told = decoder.obj_embed.weight[int(logits[first + row][1:].argmax()) + 2]
        first += count
    return torch.stack(logits)


@pytest.mark.parametrize("seed", range(3))
def test_tree_decoder_equals_node_by_node(seed):
    batch = make_batch((9, 1, 20, 2), seed)
    decoder, trees, inputs = make_decoder(TreeDecoder), make_trees(batch, seed), inputs_of(batch)
    logits, classes = decoder(inputs, trees, batch)
    torch.testing.assert_close(logits, tree_decoded(decoder, inputs, trees), rtol=0, atol=1e-12)
    assert torch.equal(classes, logits[:, 1:].argmax(1))


@pytest.mark.parametrize("seed", range(3))
def test_sequence_decoder_equals_object_by_object(seed):
    batch = make_batch((9, 1, 20, 2), seed)
    decoder, inputs = make_decoder(SequenceDecoder), inputs_of(batch)
    logits, classes = decoder(inputs, from_right_to_left(batch), batch)
    expected = sequence_decoded(decoder, inputs, batch)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-12)
    assert torch.equal(classes, logits[:, 1:].argmax(1))


@pytest.mark.parametrize("kind", [TreeDecoder, SequenceDecoder])
def test_gradients_agree_with_finite_differences(kind):
    decoder, batch = (
        make_decoder(kind, replace(DIMS, num_objects=3, hidden_dim=3)),
        make_batch((3, 1)),
    )
    inputs = inputs_of(batch).requires_grad_()
    structure = structure_of(decoder, batch)
    weights = dict(decoder.named_parameters())
    names = list(weights)

    def run(inputs, *values):
        with_values = dict(zip(names, values, strict=True))
        return torch.func.functional_call(decoder, with_values, (inputs, structure, batch))[0]

    assert torch.autograd.gradcheck(run, (inputs, *weights.values()))


def test_in_training_a_sequence_is_told_the_labels():
    batch, decoder = make_batch((9, 1, 20, 2)), make_decoder(SequenceDecoder)
    inputs, structure = inputs_of(batch), from_right_to_left(batch)
    logits, classes = decoder(inputs, structure, batch)
    decoder.train()
    own, told = decoder(inputs, structure, replace(batch, labels=classes))
    torch.testing.assert_close(own, logits, rtol=0, atol=1e-12)
    assert torch.equal(told, classes)
    others, told = decoder(inputs, structure, batch)
    assert torch.equal(told, batch.labels)
    start = structure.order[: len(batch.counts)]
    torch.testing.assert_close(others[start], logits[start], rtol=0, atol=1e-12)
    assert (others - logits).abs().max() > 1e-3


def test_in_training_a_tree_is_told_classes_by_their_probability():
    batch, decoder = make_batch((2,) * 2000), make_decoder(TreeDecoder)
    roots = torch.tensor([[0.9, 0.9], [0.1, 0.1]]).expand(2000, 2, 2)
    trees = build_trees(roots, batch.present)
    inputs = torch.zeros(4000, WIDTH, dtype=torch.float64)
    with torch.no_grad():
        expected, _ = decoder(inputs, trees, batch)
        probability = expected[0, 1:].softmax(0)
        decoder.train()
        logits, classes = decoder(inputs, trees, batch)
    # All roots are alike; a leaf's logits tell which class its root was said to be.
    torch.testing.assert_close(logits[::2], expected[::2], rtol=0, atol=1e-12)
    assert torch.equal(classes, logits[:, 1:].argmax(1))
    kinds, counts = logits[1::2].mul(1e9).round().unique(dim=0, return_counts=True)
    assert len(kinds) == DIMS.num_objects
    shares = (counts / 2000).sort().values
    torch.testing.assert_close(shares, probability.sort().values.float(), rtol=0, atol=0.04)


@pytest.mark.parametrize("kind", [TreeDecoder, SequenceDecoder])
def test_dropout_works_in_training_only(kind):
    decoder = make_decoder(kind, replace(DIMS, decoder_dropout=1.0))
    out = decoder.out if kind is TreeDecoder else decoder.out_obj
    batch = make_batch((5, 3))
    logits, _ = decoder(inputs_of(batch), structure_of(decoder, batch), batch)
    assert (logits - out.bias).abs().min() > 1e-6
    decoder.train()
    logits, _ = decoder(inputs_of(batch), structure_of(decoder, batch), batch)
    assert torch.equal(logits, out.bias.expand_as(logits))


@pytest.mark.parametrize("counts", [(1,), (3, 3), (2, 7, 1, 7, 4)])
def test_sequences_go_from_right_to_left_with_ties_in_order(counts):
    batch = make_batch(counts, coarse=True)
    sequences = from_right_to_left(batch)
    first = [sum(counts[:image]) for image in range(len(counts))]
    rows = []
    for start, count in zip(first, counts, strict=True):
        centres = batch.boxes[start : start + count, 0].tolist()
        rows.append([start + k for k in sorted(range(count), key=lambda k: -centres[k])])
    rows.sort(key=len, reverse=True)  # stable
    expected = [row[step] for step in range(max(counts)) for row in rows if step < len(row)]
    assert sequences.order.tolist() == expected
    assert sequences.step_sizes.tolist() == [
        sum(count > step for count in counts) for step in range(max(counts))
    ]
    values = torch.arange(float(sum(counts)))[:, None]
    packed = sequences.pack(values)
    assert torch.equal(sequences.restore(packed.data), values)
    padded, lengths = torch.nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)
    assert lengths.tolist() == [len(row) for row in rows]
    assert [padded[b, : len(row), 0].tolist() for b, row in enumerate(rows)] == rows
