"""Train the bundled VCTree on the bundled photographs, and grade it after every epoch.

    python examples/train_loop_psg_mini.py

An ordinary PyTorch loop around a relation model, with PSG's 133 classes and 56 predicates. Prints
one JSON object an epoch, graded on the 21 test photographs, from which nothing is learned.
"""

from __future__ import annotations

import argparse
import json

import torch

from haystack.cli.configs import find_config
from haystack.config import load_config
from haystack.io import read_psg
from haystack.metrics import SceneGraphMetrics
from haystack.models.relation.inputs import all_pairs
from haystack.models.relation.network import RelationNetwork
from haystack.models.relation.predict import read_scene
from haystack.scene_graph import SceneGraph
from haystack.training.config import TrainConfig
from haystack.training.losses import RelationTargets, training_sums


def annotated(graph: SceneGraph) -> dict[str, torch.Tensor]:
    """What the metrics are told of an image."""
    return {
        "labels": torch.from_numpy(graph.labels),
        "relations": torch.from_numpy(graph.relations),
        "neg_relations": torch.from_numpy(graph.neg_relations),
    }


def main(epochs: int, device: str) -> None:
    """Train and grade."""
    torch.manual_seed(0)
    config = load_config(TrainConfig(), find_config("train/vctree_psg_mini"))
    dataset = read_psg("psg-mini")
    predicates = dataset.vocabulary.num_predicates
    train, test = dataset.split("train"), dataset.split("test")
    scenes = [read_scene(dataset, graph) for graph in train]
    model = RelationNetwork(config.model, dataset.vocabulary).to(device)
    encoded = model.encode(scenes)  # the part without trained weights, once
    model.fit(encoded)
    targets = [RelationTargets.from_graph(graph, predicates) for graph in train]
    optimiser = torch.optim.AdamW(model.parameters(), config.learning_rate)
    metrics = SceneGraphMetrics(predicates, from_logits=True).to(device)

    for epoch in range(epochs):
        model.train()
        for rows in torch.randperm(len(train)).split(config.batch_size):
            batch, output = model([encoded[row] for row in rows])
            sums = training_sums(batch, output, [targets[row] for row in rows], config.loss)
            optimiser.zero_grad()
            sums.means()["loss"].backward()
            optimiser.step()

        model.eval()
        metrics.reset()
        for graph in test:
            answer = model.predict_on_device([read_scene(dataset, graph)])
            prediction = {
                "pairs": torch.from_numpy(all_pairs(len(graph.labels))).to(device),
                "scores": answer.logits,
                "no_relation": answer.no_relation,
            }
            metrics.update([prediction], [annotated(graph)])
        values = metrics.compute()
        shown = {name: round(values[name].item(), 4) for name in ("P-AUC", "PDD", "PDO", "mR@50")}
        print(json.dumps({"epoch": epoch, **shown}), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    main(arguments.epochs, arguments.device)
