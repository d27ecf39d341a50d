"""Visual features: the trunk, one path from maps and one from a cache, and their memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from haystack.models.relation.batch import SceneBatch
from haystack.models.relation.config import RelationModelConfig
from haystack.models.relation.features.trunk import Trunk
from haystack.models.relation.features.visual import VisualFeatures, box_maps
from haystack.models.relation.inputs import SceneInput
from haystack.models.relation.network import RelationNetwork
from haystack.vocabulary import Vocabulary

VOCABULARY = Vocabulary(("person", "dog", "robot"), ("sky",), ("on", "holding"))
CPU = torch.device("cpu")


def make_scene(count, seed=0, height=60, width=90):
    rng = np.random.default_rng(seed)
    low = rng.uniform(0, [width - 30, height - 30], (count, 2))
    boxes = np.concatenate([low, low + rng.uniform(2, 30, (count, 2))], 1).astype(np.float32)
    image = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    ids, labels = np.arange(1, count + 1), rng.integers(0, 4, count)
    return SceneInput(f"{seed}", height, width, labels, boxes, None, ids, image)


class TinyTrunk(torch.nn.Module):
    """Maps of few channels at the right strides, each image by itself."""

    channels, strides = 8, (4, 8, 16, 32)

    def __init__(self):
        super().__init__()
        self.pointwise = torch.nn.Conv2d(3, 8, 1).requires_grad_(False)

    def forward(self, images):
        return [
            self.pointwise(torch.nn.functional.avg_pool2d(images, stride))
            for stride in self.strides
        ]


def make_features(**settings):
    torch.manual_seed(0)
    settings = {"openpsg_quirks": False, "long_side": 192, "short_side": 128, **settings}
    features = VisualFeatures(TinyTrunk(), 12, **settings)
    for module in features.modules():  # statistics that are not those of an empty layer
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.uniform_(-1, 1)
            module.running_var.uniform_(0.5, 2)
    return features.eval()


@pytest.fixture(scope="module")
def trunk():
    torch.manual_seed(0)
    return Trunk("resnet50")


def test_the_trunk_gives_four_maps_and_never_trains(trunk):
    images = torch.randn(2, 3, 64, 96)
    before = {name: tensor.clone() for name, tensor in trunk.state_dict().items()}
    trunk.train()
    maps = trunk(images)
    assert [tuple(level.shape) for level in maps] == [
        (2, 256, 16, 24),
        (2, 256, 8, 12),
        (2, 256, 4, 6),
        (2, 256, 2, 3),
    ]
    assert not any(level.requires_grad for level in maps)
    assert not any(parameter.requires_grad for parameter in trunk.parameters())
    assert not any(module.training for module in trunk.modules())
    after = trunk.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


def test_the_trunk_is_a_resnet_and_a_pyramid_written_out(trunk):
    """Coarse maps are enlarged by repetition and added to finer ones, then smoothed."""
    images = torch.randn(1, 3, 64, 96)
    weights = trunk.state_dict()
    conv = torch.nn.functional.conv2d

    def named(kind, level, **options):
        weight, bias = (weights[f"fpn.{kind}_blocks.{level}.0.{x}"] for x in ("weight", "bias"))
        return lambda maps: conv(maps, weight, bias, **options)

    with torch.no_grad():
        net = trunk.backbone
        maps = net.maxpool(net.relu(net.bn1(net.conv1(images))))
        stages = []
        for stage in (net.layer1, net.layer2, net.layer3, net.layer4):
            maps = stage(maps)
            stages.append(maps)
        assert [stage.shape[1] for stage in stages] == [256, 512, 1024, 2048]
        above, expected = None, []
        for level in (3, 2, 1, 0):
            inner = named("inner", level)(stages[level])
            if above is not None:
                inner = inner + above.repeat_interleave(2, 2).repeat_interleave(2, 3)
            above = inner
            expected.insert(0, named("layer", level, padding=1)(inner))
    for ours, theirs in zip(trunk(images), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_channels_last_gives_the_same_maps(trunk):
    images = torch.randn(1, 3, 64, 64)
    expected = trunk(images)
    trunk.to(memory_format=torch.channels_last)
    try:
        maps = trunk(images.to(memory_format=torch.channels_last))
    finally:
        trunk.to(memory_format=torch.contiguous_format)
    for ours, theirs in zip(maps, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("at_once", [None, 4])
def test_scenes_come_back_in_order_in_the_frame_of_the_resized_picture(monkeypatch, at_once):
    """Pictures of one size share a pass of the trunk where that pays; others have their own."""
    if at_once:
        path = "haystack.models.relation.features.visual._images_at_once"
        monkeypatch.setattr(path, lambda device: at_once)
    features, calls = make_features(), []
    handle = features.trunk.register_forward_pre_hook(
        lambda module, inputs: calls.append(tuple(inputs[0].shape))
    )
    scenes = [make_scene(2, seed) for seed in range(6)]
    scenes.insert(1, make_scene(3, 9, height=90, width=60))
    together = features.encode(scenes)
    handle.remove()
    groups = [1, 2, 4] if at_once else [1] * 7
    assert sorted(shape[0] for shape in calls) == groups
    assert sorted(shape[2:] for shape in calls) == [(128, 192)] * (len(groups) - 1) + [(192, 128)]
    for scene, view in zip(scenes, together, strict=True):
        assert view.scene.image_id == scene.image_id
        assert view.scene.image is None
        (alone,) = features.encode([scene])
        assert (view.scene.height, view.scene.width) in {(128, 192), (192, 128)}
        scale = view.scene.height / scene.height
        np.testing.assert_allclose(view.scene.boxes, scene.boxes * scale, rtol=1e-6)
        for name in ("p2", "p3", "p4", "p5"):
            torch.testing.assert_close(view.tensors[name], alone.tensors[name])


def run(features, views):
    batch = SceneBatch.from_scenes([view.scene for view in views], CPU)
    return features(batch, views)


def test_features_do_not_depend_on_chunks_caches_or_the_batch(monkeypatch):
    features = make_features(openpsg_quirks=True)
    scenes = [make_scene(5, 1), make_scene(1, 2), make_scene(4, 3, height=90, width=60)]
    views = features.encode(scenes)
    with torch.inference_mode():
        objects, unions = run(features, views)
        assert objects.shape == (10, 12)
        assert unions.shape == (5 * 4 + 4 * 3, 12)
        alone = [run(features, [view]) for view in views]
        torch.testing.assert_close(objects, torch.cat([first for first, _ in alone]))
        torch.testing.assert_close(unions, torch.cat([second for _, second in alone]))

        cached = [features.compact(view) for view in views]
        assert [set(view.tensors) for view in cached] == [{"regions"}] * 3
        assert [len(view.tensors["regions"]) for view in cached] == [15, 1, 10]
        assert features.compact(cached[0]) is cached[0]
        for ours, expected in zip(run(features, cached), (objects, unions), strict=True):
            torch.testing.assert_close(ours, expected)

        monkeypatch.setattr("haystack.models.relation.features.visual._PAIRS_AT_ONCE", 3)
        for ours, expected in zip(run(features, views), (objects, unions), strict=True):
            torch.testing.assert_close(ours, expected)
        assert torch.equal(
            features.compact(views[0]).tensors["regions"], cached[0].tensors["regions"]
        )


def test_features_of_chosen_pairs_are_rows_of_those_of_all_pairs():
    features = make_features()
    views = features.encode([make_scene(4, 1), make_scene(3, 2)])
    batch = SceneBatch.from_scenes([view.scene for view in views], CPU)
    chosen = torch.tensor([11, 3, 0, 17, 12, 5])
    some = SceneBatch(
        batch.labels, batch.boxes, batch.sizes, batch.counts, batch.pairs[chosen], (4, 2)
    )
    with torch.no_grad():
        _, every = features(batch, views)
        _, few = features(some, views)
    torch.testing.assert_close(few, every[chosen])


def test_half_precision_caches_are_half_as_large_and_nearly_equal():
    features = make_features()
    views = features.encode([make_scene(4, 1)])
    with torch.no_grad():
        exact = run(features, views)
        features.compact_dtype = torch.float16
        cached = [features.compact(view) for view in views]
        assert cached[0].tensors["regions"].dtype == torch.float16
        rounded = run(features, cached)
    for ours, expected in zip(rounded, exact, strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, expected, rtol=1e-2, atol=1e-2)


def test_training_normalises_over_the_whole_batch_and_leaves_the_trunk_alone(monkeypatch):
    monkeypatch.setattr("haystack.models.relation.features.visual._PAIRS_AT_ONCE", 3)
    gradients = []
    for cached in (False, True):
        features = make_features().train()
        views = features.encode([make_scene(4, 1), make_scene(3, 2)])
        assert not any(t.requires_grad for view in views for t in view.tensors.values())
        if cached:
            views = [features.compact(view) for view in views]
        objects, unions = run(features, views)
        norm = features.relation_roi_extractor.spatial_conv[0].bn
        assert norm.num_batches_tracked == 1
        (objects.square().sum() + unions.square().sum()).backward()
        named = dict(features.named_parameters())
        assert all((p.grad is None) == name.startswith("trunk.") for name, p in named.items())
        gradients.append({name: p.grad for name, p in named.items() if p.grad is not None})
    for name, gradient in gradients[0].items():
        assert gradient.abs().sum() > 0
        torch.testing.assert_close(gradient, gradients[1][name])


def test_autocast_does_not_break_the_features():
    features = make_features()
    scenes = [make_scene(4, 1)]
    with torch.no_grad():
        exact = run(features, features.encode(scenes))
        with torch.autocast("cpu", torch.bfloat16):
            views = features.encode(scenes)
            rounded = run(features, views)
            again = run(features, [features.compact(view) for view in views])
    for ours, cached, expected in zip(rounded, again, exact, strict=True):
        torch.testing.assert_close(ours.float(), expected, rtol=0.1, atol=0.1)
        torch.testing.assert_close(cached.float(), ours.float(), rtol=0.05, atol=0.05)


def peak_bytes(function):
    """Most bytes of tensors that were alive at once, those from before not counted."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        function()
    events = recorded.profiler.kineto_results.events()
    now = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return most


def test_memory_grows_by_the_features_of_pairs_not_by_their_regions(monkeypatch):
    monkeypatch.setattr("haystack.models.relation.features.visual._PAIRS_AT_ONCE", 64)
    features = make_features()
    channels, roi_dim, at_once = 8, 12, 64
    region = 4 * channels * 49
    peaks = {}
    for count in (30, 90):
        views = features.encode([make_scene(count)])
        batch = SceneBatch.from_scenes([view.scene for view in views], CPU)
        batch.image_of  # noqa: B018  a cached property
        with torch.inference_mode():
            peaks[count] = peak_bytes(lambda batch=batch, views=views: features(batch, views))
    pairs = {count: count * (count - 1) for count in peaks}
    # Of a pair: its features and a few indices; of a chunk's pair some 60 kB / 32 of maps here.
    of_pair = 4 * roi_dim + 8 * 8
    grown = peaks[90] - peaks[30]
    objects = 60 * 2 * region
    assert grown < (pairs[90] - pairs[30]) * of_pair + objects
    assert peaks[90] < pairs[90] * region / 2
    assert peaks[30] > at_once * region  # the measure measures


@pytest.mark.parametrize("trunk_name", ["resnet50", "resnet101"])
def test_a_network_is_built_from_its_configuration(trunk_name):
    with torch.device("meta"):
        network = RelationNetwork(
            RelationModelConfig(features="visual", embeddings="learned", trunk=trunk_name),
            VOCABULARY,
        )
    assert network.reads_images
    blocks = sum(".layer3." in name and name.endswith("conv1.weight") for name in _names(network))
    assert blocks == {"resnet50": 6, "resnet101": 23}[trunk_name]


def _names(network):
    return list(network.state_dict())


def test_box_maps_draw_the_boxes_and_the_quirk_draws_other_columns():
    boxes = torch.tensor([[0.0, 10.0, 54.0, 20.0]])
    size = torch.tensor([[27.0, 54.0]])  # one row a cell, half a column a pixel
    right = box_maps(boxes, boxes, size, openpsg_quirks=False)[0]
    assert torch.equal(right[0], right[1])
    assert right[0].sum() == 27 * 11
    assert right[0, 10:21].all()
    quirk = box_maps(boxes, boxes, size, openpsg_quirks=True)[0]
    assert torch.equal(quirk[0], right[0])
    assert quirk[1].sum() == 0  # rows from x2 = 27 lie outside
