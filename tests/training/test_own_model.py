"""A model of one's own is trained by the same loop."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from haystack.errors import InputError
from haystack.models.relation.batch import SceneBatch
from haystack.models.relation.features.base import EncodedScene
from haystack.models.relation.heads.base import HeadOutput
from haystack.models.relation.inputs import RelationLogits, all_pairs
from haystack.models.relation.protocol import RelationModel, TrainableRelationModel
from haystack.training.trainer import train


class Classes(nn.Module):
    """Predicates from the classes of subject and object alone."""

    reads_images = False

    def __init__(self, num_objects, num_predicates):
        super().__init__()
        self.num_predicates = num_predicates
        self.table = nn.Embedding(num_objects**2, num_predicates + 1)
        self.num_objects = num_objects

    def encode(self, scenes):
        return [EncodedScene(replace(scene, id_map=None), {}) for scene in scenes]

    def forward(self, encoded):
        batch = SceneBatch.from_scenes([view.scene for view in encoded], self.table.weight.device)
        subject, target = batch.labels[batch.pairs].unbind(1)
        return batch, HeadOutput(self.table(subject * self.num_objects + target))

    @torch.inference_mode()
    def predict(self, scenes):
        answers = []
        for scene in scenes:
            logits = self(self.encode([scene]))[1].logits.numpy()
            pairs = all_pairs(len(scene))
            answers.append(RelationLogits(scene.image_id, pairs, logits[:, 1:], logits[:, 0]))
        return answers


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Classes(3, 3)


def test_it_trains_validates_resumes_and_is_stored(dataset, quick, model, tmp_path):
    assert isinstance(model, RelationModel)
    assert isinstance(model, TrainableRelationModel)
    config = replace(
        quick,
        steps=30,
        learning_rate=0.1,
        validation_fraction=0.25,
        validate_every=10,
        select="loss",
        checkpoint_every=5,
    )
    initial = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    whole = train(config, dataset, tmp_path / "whole", model=model)
    rows = whole.metrics
    assert rows[-1]["validation/loss"] < rows[0]["loss"]
    stored = load_file(tmp_path / "whole" / "model.safetensors")
    assert torch.equal(stored["table.weight"], whole.model.table.weight)

    def stop(step, steps, losses):
        if step == 12:
            raise KeyboardInterrupt

    model.load_state_dict(initial)
    with pytest.raises(KeyboardInterrupt):
        train(config, dataset, tmp_path / "parts", model=model, progress=stop)
    again = train(config, dataset, tmp_path / "parts", model=model)
    assert again.resumed_from == 10
    paths = [tmp_path / name / "model.safetensors" for name in ("whole", "parts")]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    model.load_state_dict(initial)
    assert train(config, dataset, tmp_path / "parts", model=model).was_finished
    assert torch.equal(model.table.weight, whole.model.table.weight)


def test_what_cannot_be_trained_is_told(dataset, quick):
    class Incomplete(nn.Module):
        reads_images = False
        num_predicates = 3

    with pytest.raises(InputError, match=r"got Incomplete without predict, encode"):
        train(quick, dataset, model=Incomplete())
    with pytest.raises(InputError, match=r"expected a torch\.nn\.Module"):
        train(quick, dataset, model=object())
