"""The evaluator in a loop like detectron2's, whose package is not needed."""

from __future__ import annotations

import subprocess
import sys
from collections import OrderedDict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from haystack.errors import InputError
from haystack.evaluation import SceneGraphEvaluator, evaluate
from haystack.scene_graph import RelationScores, SceneGraph, SceneGraphDataset, Segment, as_triplets
from haystack.vocabulary import Vocabulary

VOCABULARY = Vocabulary(("person", "dog"), ("sky",), ("on", "riding"))
PAIRS = np.array([(0, 1), (1, 0)])
BOXES = ((0.0, 0.0, 4.0, 2.0), (0.0, 2.0, 4.0, 4.0))


def dataset(tmp_path=None, count=5):
    segments = tuple(Segment(i + 1, i, 8, BOXES[i]) for i in range(2))
    graphs = []
    for number in range(count):
        graphs.append(
            SceneGraph(
                str(number),
                4,
                4,
                f"{number}.jpg",
                pan_seg_file_name="map.png" if tmp_path else None,
                segments=segments,
                relations=as_triplets([(0, 1, number % 2)]),
                neg_relations=as_triplets([(1, 0, 1)]),
            )
        )
    if tmp_path:
        pixels = np.zeros((4, 4, 3), dtype=np.uint8)
        pixels[:2, :, 0], pixels[2:, :, 0] = 1, 2
        Image.fromarray(pixels).save(tmp_path / "map.png")
    return SceneGraphDataset(VOCABULARY, tuple(graphs), root=tmp_path)


def scores(number):
    return np.random.default_rng(number).random((2, 2)).astype(np.float32)


def output(number):
    return {
        "scene_graph": {
            "pairs": torch.from_numpy(PAIRS),
            "scores": torch.from_numpy(scores(number)),
        }
    }


def instances():
    return SimpleNamespace(
        pred_classes=torch.tensor([1, 0]),
        pred_boxes=SimpleNamespace(tensor=torch.tensor(BOXES[::-1])),
        scores=torch.ones(2),
    )


def panoptic():
    """The segments in the other order, under other ids."""
    id_map = torch.full((4, 4), 70)
    id_map[2:] = 30
    segments = [{"id": 30, "category_id": 1}, {"id": 70, "category_id": 0}]
    return id_map, segments


def inference_on_dataset(evaluator, batches, model):
    """What detectron2's function of this name asks of an evaluator."""
    evaluator.reset()
    for inputs in batches:
        evaluator.process(inputs, model(inputs))
    results = evaluator.evaluate()
    return {} if results is None else results


def batches(count=5, size=2):
    numbers = range(count)
    return [[{"image_id": i} for i in numbers[b : b + size]] for b in range(0, count, size)]


def model(inputs):
    return [output(image["image_id"]) for image in inputs]


def test_equal_to_the_evaluation_of_a_file():
    data = dataset()
    evaluator = SceneGraphEvaluator(data, ks=(1, 2))
    report = evaluate(data, [RelationScores(str(i), PAIRS, scores(i)) for i in range(5)], ks=(1, 2))
    for _ in range(2):  # reset forgets
        results = inference_on_dataset(evaluator, batches(), model)
        assert list(results) == ["scene_graph"]
        values = results["scene_graph"]
        assert isinstance(values, OrderedDict)
        for name, value in report.metrics.items():
            assert values[name] == pytest.approx(value, nan_ok=True)
        for predicate, row in report.per_predicate.items():
            for name in ("P-AUC", "PDD", "PDO", "R@1"):
                found = values[f"{name}-{predicate}"]
                assert found == pytest.approx(row[name], nan_ok=True)
        assert all(isinstance(float(value), float) for value in values.values())
        assert 0 < values["R@2"] <= 1  # fractions, not percent
    short = SceneGraphEvaluator(data, per_predicate=False)
    named = inference_on_dataset(short, batches(), model)["scene_graph"]
    assert not any(name.endswith("-riding") for name in named)


@pytest.mark.parametrize("kind", ["instances", "panoptic_seg", "labels"])
def test_objects_of_the_model(tmp_path, kind):
    """The model's objects are the annotated ones in the other order."""
    data = dataset(tmp_path)
    objects = {
        "instances": {"instances": instances()},
        "panoptic_seg": {"panoptic_seg": panoptic()},
        "labels": {},
    }[kind]

    def detector(inputs):
        found = []
        for image, given in zip(inputs, model(inputs), strict=True):
            graph = given["scene_graph"] | {"pairs": torch.from_numpy(1 - PAIRS)}
            if kind == "labels":
                graph |= {"labels": torch.tensor([1, 0]), "boxes": torch.tensor(BOXES[::-1])}
            found.append({**objects, "scene_graph": graph, "file_name": image})
        return found

    plain, detected = (
        inference_on_dataset(SceneGraphEvaluator(data, ks=(1,)), batches(), given)["scene_graph"]
        for given in (model, detector)
    )
    for name in ("R@1", "mR@1", "P-AUC", "PDD", "InstR"):
        assert detected[name] == pytest.approx(plain[name], abs=1e-12)
    assert plain["R@1"] > 0


def test_errors_name_the_image():
    evaluator = SceneGraphEvaluator(dataset())
    with pytest.raises(InputError, match=r"image 9: .*not among those to evaluate \(split 'all'\)"):
        evaluator.process([{"image_id": 9}], [output(9)])
    evaluator.process([{"image_id": 1}], [output(1)])
    with pytest.raises(InputError, match="image 1: the image came before"):
        evaluator.process([{"image_id": 1}], [output(1)])
    with pytest.raises(InputError, match=r"'pairs' and 'scores'.*got \['instances'\]"):
        evaluator.process([{"image_id": 2}], [{"instances": instances()}])


def test_detectron2_is_not_imported():
    code = "import sys, haystack.evaluation.detectron2; print('detectron2' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


WORKER = """
import sys, torch, torch.distributed as dist
sys.path.insert(0, sys.argv[3])
from test_detectron2 import SceneGraphEvaluator, batches, dataset, inference_on_dataset, model
rank, folder = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
evaluator = SceneGraphEvaluator(dataset(), ks=(1, 2))
results = inference_on_dataset(evaluator, batches()[rank::2], model)
torch.save({task: dict(values) for task, values in results.items()}, f"{folder}/{rank}.pt")
dist.destroy_process_group()
"""


@pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch lacks torch.distributed")
def test_two_processes_and_only_the_first_has_the_result(tmp_path):
    from pathlib import Path

    here = str(Path(__file__).parent)
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", WORKER, str(rank), str(tmp_path), here],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for process in processes:
            _, errors = process.communicate(timeout=120)
            assert process.returncode == 0, errors
    finally:
        for process in processes:
            process.kill()
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    assert second == {}
    alone = inference_on_dataset(SceneGraphEvaluator(dataset(), ks=(1, 2)), batches(), model)
    assert first["scene_graph"] == pytest.approx(dict(alone["scene_graph"]), abs=0, nan_ok=True)


def test_fewer_images_than_the_split_has_are_told(caplog):
    evaluator = SceneGraphEvaluator(dataset(), ks=(1,), per_predicate=False)
    inference_on_dataset(evaluator, batches(count=3), model)
    assert "3 of the 5 images of split 'all' were evaluated" in caplog.text
    caplog.clear()
    inference_on_dataset(evaluator, batches(), model)
    assert caplog.text == ""
