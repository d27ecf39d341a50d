"""A scene-graph task that a small model learns in seconds, for the examples beside this file.

The classes of two objects decide which predicate holds between them, if any, except that one pair
in ten is arbitrary. True relations are annotated, and explicit negatives.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

CLASSES = 8
PREDICATES = 5


class Scenes(Dataset):
    """Random images; an item is an image, a dict of tensors.

    - ``labels`` [N]: classes of the objects.
    - ``pairs`` [R, 2]: all ordered pairs of objects.
    - ``truth`` [R]: the predicate of each pair, ``PREDICATES`` for none.
    - ``relations`` [T, 3], ``neg_relations`` [M, 3]: what is annotated.
    """

    def __init__(self, images: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.images = [scene(number, generator) for number in range(images)]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.images[index]


def scene(number: int, generator: torch.Generator) -> dict[str, Any]:
    """One image."""
    objects = int(torch.randint(3, 6, (1,), generator=generator))
    labels = torch.randint(CLASSES, (objects,), generator=generator)
    pairs = torch.cartesian_prod(torch.arange(objects), torch.arange(objects))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    subjects, targets = labels[pairs].unbind(1)
    truth = (3 * subjects + targets * targets) % (PREDICATES + 3)
    truth = truth.clamp(max=PREDICATES)
    arbitrary = torch.rand(truth.shape, generator=generator) < 0.1
    other = torch.randint(PREDICATES + 1, truth.shape, generator=generator)
    truth = truth.where(~arbitrary, other)
    asked = torch.randint(PREDICATES, truth.shape, generator=generator)
    rows = torch.cat([pairs, truth[:, None]], dim=1)[truth < PREDICATES]
    refused = torch.cat([pairs, asked[:, None]], dim=1)[asked != truth]
    return {
        "image_id": str(number),
        "labels": labels,
        "pairs": pairs,
        "truth": truth,
        "relations": rows,
        "neg_relations": refused,
    }


def collate(batch: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Images differ in size: a batch stays a list."""
    return batch


class PairClassifier(nn.Module):
    """Predicate logits of a pair from the classes of its objects."""

    def __init__(self) -> None:
        super().__init__()
        self.subject = nn.Embedding(CLASSES, 16)
        self.target = nn.Embedding(CLASSES, 16)
        self.head = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, PREDICATES + 1))

    def forward(self, batch: list[dict[str, Any]]) -> list[Tensor]:
        """Logits [R, PREDICATES + 1] of each image, "no relation" last."""
        classes = torch.cat([image["labels"][image["pairs"]] for image in batch])
        classes = classes.to(self.subject.weight.device)
        features = torch.cat([self.subject(classes[:, 0]), self.target(classes[:, 1])], dim=1)
        return list(self.head(features).split([len(image["pairs"]) for image in batch]))

    def loss(self, batch: list[dict[str, Any]]) -> Tensor:
        """Cross-entropy over predicates and "no relation"."""
        logits = torch.cat(self(batch))
        truth = torch.cat([image["truth"] for image in batch]).to(logits.device)
        return nn.functional.cross_entropy(logits, truth)


def predictions(batch: list[dict[str, Any]], logits: list[Tensor]) -> list[dict[str, Any]]:
    """What ``SceneGraphMetrics`` takes as ``preds``; the images themselves serve as targets."""
    return [
        {"pairs": image["pairs"], "scores": values[:, :-1], "no_relation": values[:, -1]}
        for image, values in zip(batch, logits, strict=True)
    ]
