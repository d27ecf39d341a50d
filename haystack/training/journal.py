"""Where a run's numbers go: ``metrics.jsonl`` as they come, and a tracker if one is asked for."""

from __future__ import annotations

import importlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from haystack.errors import InputError, MissingDependencyError
from haystack.files import sha256_text

Row = dict[str, float]


class Journal:
    """``metrics.jsonl``: a line a row, written as it comes.

    A checkpoint notes how long the file was. A run that goes on from it cuts off what came after,
    and writes the same lines again: none is lost, none is there twice.

    Args:
        path: of the file, or None to keep the rows in memory only.
        length: bytes to keep of what is there.

    Raises:
        InputError: the file is shorter than that.
    """

    def __init__(self, path: Path | None, length: int = 0) -> None:
        self.rows: list[Row] = []
        self._stream = None
        if path is None:
            return
        self._stream = path.open("r+b" if path.exists() else "w+b")
        kept = self._stream.read(length)
        if len(kept) < length:
            raise InputError(
                f"expected at least {length} bytes, as the checkpoint says, got {len(kept)}; "
                "remove the folder to start again",
                path=path,
            )
        self.rows = [_with_nan(json.loads(line)) for line in kept.splitlines()]
        self._stream.truncate(length)

    def add(self, row: Row) -> None:
        """Append a row; NaN is written as null."""
        self.rows.append(row)
        if self._stream is not None:
            plain = {name: value if math.isfinite(value) else None for name, value in row.items()}
            self._stream.write(json.dumps(plain).encode() + b"\n")
            self._stream.flush()

    def sync(self) -> int:
        """Make all rows durable; the length of the file."""
        if self._stream is None:
            return 0
        os.fsync(self._stream.fileno())
        return self._stream.tell()

    def close(self) -> None:
        """Close the file."""
        if self._stream is not None:
            self._stream.close()


def _with_nan(row: Mapping[str, float | None]) -> Row:
    return {name: math.nan if value is None else value for name, value in row.items()}


class Tracker(Protocol):
    """A place on the side where rows are shown."""

    def add(self, row: Row) -> None:
        """Show a row."""

    def close(self) -> None:
        """Flush what is left."""


class NoTracker:
    """Shows nothing."""

    def add(self, row: Row) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class _TensorBoard:
    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # What a killed run showed after its last checkpoint is taken back.
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def add(self, row: Row) -> None:
        for name, value in _values(row).items():
            self._writer.add_scalar(name, value, int(row["step"]))

    def close(self) -> None:
        self._writer.close()


class _WeightsAndBiases:
    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        import wandb

        # One folder is one run there as well: a resumed one goes on with it.
        name = sha256_text(str(folder.resolve()))[:16]
        self._run = wandb.init(
            project="haystack", id=name, name=folder.name, resume="allow", config=dict(config)
        )

    def add(self, row: Row) -> None:
        self._run.log(_values(row), step=int(row["step"]))

    def close(self) -> None:
        self._run.finish()


_MODULES = {"tensorboard": "torch.utils.tensorboard", "wandb": "wandb"}


def check_tracker(kind: str, folder: Path | None) -> None:
    """See that the tracker which ``TrainConfig.track`` names can be opened; writes nothing.

    Raises:
        InputError: there is no folder for the run.
        MissingDependencyError: its package is not installed.
    """
    if kind == "none":
        return
    if folder is None:
        raise InputError(f"track={kind} needs a folder for the run")
    try:
        importlib.import_module(_MODULES[kind])
    except ImportError as error:
        raise MissingDependencyError(kind, purpose=f"track={kind}", extra="track") from error


def open_tracker(
    kind: str, folder: Path | None, *, step: int, config: Mapping[str, Any]
) -> Tracker:
    """The tracker that ``TrainConfig.track`` names.

    Args:
        kind: ``none``, ``tensorboard`` or ``wandb``.
        folder: of the run.
        step: after which the run goes on.
        config: shown beside the numbers.

    Raises:
        InputError: see ``check_tracker``.
        MissingDependencyError: the same.
    """
    check_tracker(kind, folder)
    if kind == "none" or folder is None:
        return NoTracker()
    return (
        _TensorBoard(folder, step) if kind == "tensorboard" else _WeightsAndBiases(folder, config)
    )


def _values(row: Row) -> Row:
    return {k: value for k, value in row.items() if k != "step" and math.isfinite(value)}
