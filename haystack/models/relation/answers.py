"""What a relation model must answer; checked wherever one is asked, a user's own included."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch

from haystack.errors import HaystackError, InputError
from haystack.models.relation.inputs import PairLogits, RelationLogits, SceneInput
from haystack.models.relation.protocol import DeviceRelationModel, RelationModel


def ask(model: RelationModel, scenes: Sequence[SceneInput]) -> list[RelationLogits]:
    """The model's answers for scenes, one for each, in their order.

    Raises:
        InputError: it answers for other images or pairs, or in other shapes, than it was asked
            for; a logit is not finite; or see ``failures_named``.
    """
    with failures_named(model, "predict"):
        answers = model.predict(scenes)
    if not isinstance(answers, (list, tuple)) or len(answers) != len(scenes):
        listed = isinstance(answers, (list, tuple))
        found = f"a list of {len(answers)}" if listed else f"an object of {type(answers).__name__}"
        raise InputError(
            "predict(scenes) must return a list of one RelationLogits a scene; given "
            f"{len(scenes)}, it returned {'None' if answers is None else found}",
            path=model_name(model),
        )
    checked = []
    for scene, answer in zip(scenes, answers, strict=True):
        try:
            checked.append(_checked(scene, answer, model.num_predicates))
        except InputError as error:
            where = f"image {scene.image_id}"
            raise InputError(error.message, path=model_name(model), record=where) from error
    return checked


def model_name(model: object) -> str:
    """A model's class, and for one of the user's own the file that it is written in."""
    kind = type(model)
    if _is_ours(model):
        return kind.__qualname__
    try:
        file = inspect.getsourcefile(kind)
    except (TypeError, OSError):  # typed into an interpreter
        file = None
    return f"{file or kind.__module__}:{kind.__qualname__}"


@contextmanager
def failures_named(model: object, method: str) -> Iterator[None]:
    """Say whose fault it is when a method of a user's own model fails.

    Raises:
        InputError: what the method raised, in a sentence that names model and method. Running out
            of memory passes as it is: the callers answer it with smaller batches.
    """
    try:
        yield
    except HaystackError:
        raise
    except Exception as error:
        if _is_ours(model) or isinstance(error, MemoryError):
            raise
        if isinstance(error, RuntimeError) and re.search("memory|ALLOC_FAILED", str(error)):
            raise
        raise InputError(
            f"the model's {method}() raised {type(error).__name__}: {error} (--debug shows where)",
            path=model_name(model),
        ) from error


def _is_ours(model: object) -> bool:
    return type(model).__module__.partition(".")[0] == "haystack"


def ask_on_device(model: RelationModel, scenes: Sequence[SceneInput]) -> PairLogits:
    """As ``ask``, with logits left on the device where the model can leave them there.

    Whether they are finite is then not checked: that would wait for the device. Scenes' classes
    are certain. Nobody trains on answers, so they carry no gradients.

    Raises:
        InputError: it answers in other shapes than it was asked for; see ``ask``.
    """
    if not isinstance(model, DeviceRelationModel):
        return _stacked(ask(model, scenes), model)
    with failures_named(model, "predict_on_device"), torch.no_grad():
        answer = model.predict_on_device(scenes)
    answer = _without_gradients(answer, model)
    sizes = [len(scene) for scene in scenes]
    rows = sum(size * (size - 1) for size in sizes)
    none = answer.no_relation
    found = (tuple(answer.logits.shape), None if none is None else tuple(none.shape))
    expected = ((rows, model.num_predicates), None if none is None else (rows,))
    if found != expected:
        raise InputError(
            f"the relation model must answer for {rows} pairs and {model.num_predicates} "
            f"predicates with logits of shape {list(expected[0])} and no_relation of shape "
            f"[{rows}], it gave {found[0]} and {found[1]}",
            path=model_name(model),
        )
    return answer


def _without_gradients(answer: object, model: RelationModel) -> PairLogits:
    logits, none = getattr(answer, "logits", None), getattr(answer, "no_relation", None)
    if not isinstance(logits, torch.Tensor) or not isinstance(none, (torch.Tensor, type(None))):
        kinds = f"{type(answer).__name__} of {type(logits).__name__} and {type(none).__name__}"
        found = kinds if isinstance(answer, PairLogits) else type(answer).__name__
        raise InputError(
            f"predict_on_device(scenes) must return PairLogits of tensors, it returned {found}",
            path=model_name(model),
        )
    return PairLogits(logits.detach(), None if none is None else none.detach())


def _stacked(answers: Sequence[RelationLogits], model: RelationModel) -> PairLogits:
    logits = [np.empty((0, model.num_predicates), dtype=np.float32)]
    without = [answer.no_relation is None for answer in answers if len(answer.pairs)]
    if any(without) and not all(without):
        raise InputError(
            "the relation model gave no_relation for some images and not for others; give it for "
            "all or for none",
            path=model_name(model),
        )
    none = [np.empty(0, dtype=np.float32)]
    for answer in answers:
        order = np.lexsort((answer.pairs[:, 1], answer.pairs[:, 0]))
        logits.append(answer.logits[order])
        if answer.no_relation is not None:
            none.append(answer.no_relation[order])
    has_none = bool(without) and not any(without)
    return PairLogits(
        torch.from_numpy(np.concatenate(logits)),
        torch.from_numpy(np.concatenate(none)) if has_none else None,
    )


def _checked(scene: SceneInput, answer: object, num_predicates: int) -> RelationLogits:
    if not isinstance(answer, RelationLogits):
        raise InputError(
            f"the relation model must answer with RelationLogits, it gave {type(answer).__name__}"
        )
    if answer.image_id != scene.image_id:
        raise InputError(
            f"the relation model answered for {answer.image_id!r}; answers must be in the order "
            "of the scenes"
        )
    count = len(scene)
    pairs = _array(answer.pairs, "pairs", np.int64).reshape(-1, 2)
    inside = bool(((pairs >= 0) & (pairs < count)).all())
    distinct = len(np.unique(pairs[:, 0] * count + pairs[:, 1])) == len(pairs)
    apart = bool((pairs[:, 0] != pairs[:, 1]).all())
    if len(pairs) != count * max(count - 1, 0) or not (inside and distinct and apart):
        raise InputError(
            f"the relation model must answer for each of the {count * max(count - 1, 0)} ordered "
            f"pairs of {count} segments once, it gave {len(pairs)} rows that are not these"
        )
    found = {"logits": _array(answer.logits, "logits", np.float32)}
    shapes: dict[str, tuple[int, ...]] = {"logits": (len(pairs), num_predicates)}
    if answer.no_relation is not None:
        found["no_relation"] = _array(answer.no_relation, "no_relation", np.float32)
        shapes["no_relation"] = (len(pairs),)
    for name, values in found.items():
        if values.shape != shapes[name]:
            raise InputError(
                f"the relation model must give {name} of shape {list(shapes[name])}, it gave "
                f"{list(values.shape)}"
            )
        if not np.isfinite(values).all():
            raise InputError(
                f"the relation model gave {name} that are NaN or infinite; its weights or its "
                "input are broken"
            )
    if answer.objects is not None and len(answer.objects) != count:
        raise InputError(f"the relation model classified {len(answer.objects)} objects of {count}")
    return replace(
        answer, pairs=pairs, logits=found["logits"], no_relation=found.get("no_relation")
    )


def _array(values: object, name: str, kind: type[np.generic]) -> np.ndarray:
    """Also from what NumPy can take up: lists, and tensors that lie on the CPU."""
    try:
        return np.asarray(values, dtype=kind)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(
            f"the relation model must give {name} as a NumPy array, it gave "
            f"{type(values).__name__}: {reason}"
        ) from error
