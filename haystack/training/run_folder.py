"""The folder of a run: what it was asked, how far it is, and what it gives.

```
config.yaml                  the resolved configuration
data.json                    the images, those held out by name, and a fingerprint of all labels
environment.json             versions, commit, image and GPUs of each process that went on with it
metrics.jsonl                rows, as they come
checkpoints/last.safetensors weights, optimiser state, and where the run was
checkpoints/best-N.safetensors   the best weights so far, of step N
model.safetensors            the result, at the end
summary.json                 written last: the run is finished
```

Each file appears all at once. What is random follows from the seed and the step, so that a
checkpoint holds no state of random generators, and a resumed run gives the bytes of an
undisturbed one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from haystack import files
from haystack.config import load_config
from haystack.environment import note_environment
from haystack.errors import InputError
from haystack.training.config import NEUTRAL, TrainConfig
from haystack.training.trainee import plain_tensors, save_model

_KEY = "haystack_training"
_MODEL, _OPTIMISER = "model/", "optimizer/"


@dataclass(frozen=True)
class Checkpoint:
    """Where a run was.

    Args:
        model: weights by name.
        optimiser: tensors by name.
        header: plain values: the step, the selection, the optimiser's others, and the length of
            ``metrics.jsonl``.
    """

    model: Mapping[str, Tensor]
    optimiser: Mapping[str, Tensor]
    header: Mapping[str, Any]


class RunFolder:
    """The folder of one run.

    Args:
        path: of the folder; made if missing.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.model = self.path / "model.safetensors"
        self.metrics = self.path / "metrics.jsonl"
        self._last = self.path / "checkpoints" / "last.safetensors"

    def open(self, config: TrainConfig, data: Mapping[str, Any]) -> None:
        """Begin a run, or make sure that the one begun here is the same.

        Raises:
            InputError: the folder holds another run, or something that is none.
        """
        if not (self.path / "config.yaml").is_file():
            if self.model.exists():
                raise InputError(
                    "this folder holds a model, but not the configuration of a run; name another "
                    "folder",
                    path=self.path,
                )
            files.write_json(self.path / "data.json", data)
            text = yaml.safe_dump(asdict(config), sort_keys=False)
            note_environment(self.path, config.device)
            files.write_text(self.path / "config.yaml", text)
            return
        stored = asdict(load_config(TrainConfig(), self.path / "config.yaml"))
        same = _read_json(self.path / "data.json").get("fingerprint") == data["fingerprint"]
        asked = asdict(config)
        for name in ("init", "init_trunk"):
            if same and stored[name] and asked[name]:
                stored[name] = asked[name]  # may lie elsewhere: the fingerprint has the content
        changed = _differences(stored, asked)
        if changed:
            raise InputError(
                f"this folder holds a run with other settings ({'; '.join(changed)}); name another "
                "folder, or remove this one to start again",
                path=self.path,
            )
        if not same:
            raise InputError(
                "the annotations or the start model changed since this folder's run began; name "
                "another folder, or remove this one to start again",
                path=self.path,
            )
        for stray in self.path.glob("checkpoints/.tmp-*"):  # of a run that was killed
            stray.unlink(missing_ok=True)
        if not self.is_finished:
            note_environment(self.path, config.device)

    @property
    def is_finished(self) -> bool:
        """Whether the run came to its end."""
        return (self.path / "summary.json").is_file()

    def summary(self) -> dict[str, Any]:
        """What the run came to."""
        return _read_json(self.path / "summary.json")

    def finish(self, model: object, summary: Mapping[str, Any]) -> None:
        """Write the result."""
        save_model(model, self.model)
        files.write_json(self.path / "summary.json", summary)

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Replace the last checkpoint; best weights that it does not name go."""
        tensors = {_MODEL + name: tensor for name, tensor in checkpoint.model.items()}
        tensors |= {_OPTIMISER + name: tensor for name, tensor in checkpoint.optimiser.items()}
        header = {_KEY: files.canonical_json(checkpoint.header)}
        files.write_bytes(self._last, save(plain_tensors(tensors), header))
        self._drop_all_best_but(checkpoint.header["selection"]["step"])

    def load_checkpoint(self) -> Checkpoint | None:
        """The last checkpoint, or None before the first; best weights that it lacks go.

        Raises:
            InputError: it cannot be read.
        """
        if not self._last.is_file():
            return None
        try:
            with safe_open(self._last, framework="pt", device="cpu") as stored:
                header = json.loads((stored.metadata() or {})[_KEY])
                tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise InputError(f"cannot read the checkpoint: {error}", path=self._last) from error
        self._drop_all_best_but(header["selection"]["step"])
        return Checkpoint(_under(tensors, _MODEL), _under(tensors, _OPTIMISER), header)

    def best(self, step: int) -> Path:
        """The file of the weights of a step that was the best so far."""
        return self._last.parent / f"best-{step}.safetensors"

    def _drop_all_best_but(self, step: int) -> None:
        for path in self._last.parent.glob("best-*.safetensors"):
            if path != self.best(step):
                path.unlink(missing_ok=True)


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def _differences(
    stored: Mapping[str, Any], asked: Mapping[str, Any], prefix: str = ""
) -> list[str]:
    found = []
    for name, value in asked.items():
        if isinstance(value, Mapping):
            found += _differences(stored[name], value, f"{prefix}{name}.")
        elif value != stored[name] and prefix + name not in NEUTRAL:
            found.append(f"{prefix}{name}: {stored[name]!r} there, {value!r} here")
    return found


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {error}", path=path) from error
    return content
