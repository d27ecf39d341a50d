"""Scores all ordered pairs of one image with a relation model and reports the peak of memory."""

from __future__ import annotations

import numpy as np
import torch
from common import answer, parser
from measure import peak_memory_mib, reset_peak_memory
from synthetic import segmented

from haystack.io.panoptic_png import segment_geometry
from haystack.models.relation.config import RelationModelConfig
from haystack.models.relation.inputs import SceneInput
from haystack.models.relation.network import RelationNetwork
from haystack.vocabulary import psg_vocabulary


def main() -> None:
    arguments = parser()
    arguments.add_argument("--objects", type=int, required=True)
    arguments.add_argument("--width", type=int, required=True, help="of features")
    arguments.add_argument("--features", required=True)
    arguments.add_argument("--short-side", type=int, required=True, help="of resized pictures")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    vocabulary = psg_vocabulary()
    config = RelationModelConfig(
        features=options.features,
        roi_dim=options.width,
        hidden_dim=options.width // 2,
        pooling_dim=4 * options.width,
        side_dim=options.width // 8,
        short_side=options.short_side,
    )
    model = RelationNetwork(config, vocabulary)
    # Libraries load on the first prediction; what they take belongs to no image.
    model.predict([_scene(2, vocabulary.num_objects)])
    scene = _scene(options.objects, vocabulary.num_objects)
    reset_peak_memory()
    before = peak_memory_mib()
    model.predict([scene])
    answer(options.output, before_mib=before, peak_mib=peak_memory_mib())


def _scene(objects: int, classes: int) -> SceneInput:
    """An image of 480 x 640 pixels that its objects fill."""
    (cells,) = segmented(1, seed=0, segments=objects, height=480, width=640, classes=classes)
    id_map = (cells.truth + 1).astype(np.int32)
    found = segment_geometry(id_map)
    return SceneInput(
        image_id="image",
        height=480,
        width=640,
        labels=cells.labels[found.ids - 1],
        boxes=found.boxes,
        id_map=id_map,
        segment_ids=found.ids,
        image=np.random.default_rng(0).integers(0, 256, (480, 640, 3), np.uint8),
    )


if __name__ == "__main__":
    main()
