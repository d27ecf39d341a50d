"""The folder of a campaign's rounds, and how far each is.

```
rounds/NNN/
  round.json          what it began with: settings, the model that proposed, number of events
  answers/            the labels of that moment, as a data set
  model/              the run of training
  <before|after>.parquet   predictions on the images held out
  steps/<step>.json   a step is done: what it came to
  report.json, report.txt
```

Round 0 is what was proposed before anything was retrained; it has no folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from haystack import files
from haystack.errors import InputError

ROUNDS = "rounds"
PROPOSED = "propose"
"""The step after which the queue is that of the round."""


@dataclass(frozen=True)
class Round:
    """One round.

    Args:
        root: the workspace.
        number: from 1.
    """

    root: Path
    number: int

    @property
    def folder(self) -> Path:
        """Where everything of it lies."""
        return self.root / ROUNDS / f"{self.number:03d}"

    @property
    def is_begun(self) -> bool:
        """Whether it knows what it starts from."""
        return (self.folder / "round.json").is_file()

    @property
    def is_done(self) -> bool:
        """Whether its queue can be annotated and its report is written."""
        return self.result("report") is not None

    def begin(self, content: Mapping[str, Any]) -> None:
        """Write down what it starts from."""
        files.write_json(self.folder / "round.json", content)

    def beginning(self) -> dict[str, Any]:
        """What it started from."""
        return _read(self.folder / "round.json")

    def result(self, step: str) -> dict[str, Any] | None:
        """What a step came to; None before it is done."""
        path = self.folder / "steps" / f"{step}.json"
        return _read(path) if path.is_file() else None

    def finish(self, step: str, result: Mapping[str, Any]) -> None:
        """A step is done."""
        files.write_json(self.folder / "steps" / f"{step}.json", result)

    def report(self, content: Mapping[str, Any], text: str) -> None:
        """Write the report, for programs and for people."""
        files.write_text(self.folder / "report.txt", text + "\n")
        files.write_json(self.folder / "report.json", content)


def begun_rounds(root: Path) -> list[Round]:
    """The rounds of a workspace, in order; of the last one perhaps a part."""
    numbers = sorted(
        int(path.name) for path in (root / ROUNDS).glob("[0-9][0-9][0-9]*") if path.name.isdigit()
    )
    return [one for one in (Round(root, number) for number in numbers) if one.is_begun]


def current_round(root: Path) -> int:
    """The round that the workspace's queue belongs to; 0 before the first retraining."""
    proposed = [one.number for one in begun_rounds(root) if one.result(PROPOSED) is not None]
    return max(proposed, default=0)


def _read(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {error}", path=path) from error
    return content
