"""What a relation model must answer; checked wherever one is asked, a user's own included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from haystack.errors import HaystackError, InputError
from haystack.models.relation.inputs import RelationLogits, SceneInput
from haystack.models.relation.protocol import RelationModel


def ask(model: RelationModel, scenes: Sequence[SceneInput]) -> list[RelationLogits]:
    """The model's answers for scenes, one for each, in their order.

    Raises:
        HaystackError: it answers for other images or pairs, or in other shapes, than it was asked
            for.
        InputError: a logit is not finite.
    """
    answers = model.predict(scenes)
    if not isinstance(answers, (list, tuple)) or len(answers) != len(scenes):
        found = len(answers) if isinstance(answers, (list, tuple)) else type(answers).__name__
        raise HaystackError(
            f"the relation model answered for {found} images of {len(scenes)}; predict(scenes) "
            "must return a list of one RelationLogits a scene"
        )
    return [
        _checked(scene, answer, model.num_predicates)
        for scene, answer in zip(scenes, answers, strict=True)
    ]


def _checked(scene: SceneInput, answer: object, num_predicates: int) -> RelationLogits:
    where = f"image {scene.image_id}"
    if not isinstance(answer, RelationLogits):
        raise HaystackError(
            f"{where}: the relation model must answer with RelationLogits, it gave "
            f"{type(answer).__name__}"
        )
    if answer.image_id != scene.image_id:
        raise HaystackError(
            f"{where}: the relation model answered for {answer.image_id!r}; answers must be in "
            "the order of the scenes"
        )
    pairs = np.asarray(answer.pairs, dtype=np.int64).reshape(-1, 2)
    count = len(scene)
    inside = bool(((pairs >= 0) & (pairs < count)).all())
    distinct = len(np.unique(pairs[:, 0] * count + pairs[:, 1])) == len(pairs)
    apart = bool((pairs[:, 0] != pairs[:, 1]).all())
    if len(pairs) != count * max(count - 1, 0) or not (inside and distinct and apart):
        raise HaystackError(
            f"{where}: the relation model must answer for each of the "
            f"{count * max(count - 1, 0)} ordered pairs of {count} segments once, it gave "
            f"{len(pairs)} rows that are not these"
        )
    none = answer.no_relation
    found = {"logits": np.asarray(answer.logits, dtype=np.float32)}
    shapes: dict[str, tuple[int, ...]] = {"logits": (len(pairs), num_predicates)}
    if none is not None:
        found["no_relation"] = np.asarray(none, dtype=np.float32)
        shapes["no_relation"] = (len(pairs),)
    for name, values in found.items():
        if values.shape != shapes[name]:
            raise HaystackError(
                f"{where}: the relation model must give {name} of shape {list(shapes[name])}, it "
                f"gave {list(values.shape)}"
            )
        if not np.isfinite(values).all():
            raise InputError(
                f"the relation model gave {name} that are NaN or infinite; its checkpoint or its "
                "input is broken",
                record=where,
            )
    if answer.objects is not None and len(answer.objects) != count:
        raise HaystackError(
            f"{where}: the relation model classified {len(answer.objects)} objects of {count}"
        )
    return replace(
        answer, pairs=pairs, logits=found["logits"], no_relation=found.get("no_relation")
    )
