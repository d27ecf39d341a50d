"""Where a run's numbers go."""

from __future__ import annotations

import json
import sys
import types
from dataclasses import replace

import pytest

from haystack.errors import InputError, MissingDependencyError
from haystack.training.journal import Journal, open_tracker
from haystack.training.trainer import train


def test_rows_are_in_the_file_as_soon_as_they_are_added(tmp_path):
    path = tmp_path / "metrics.jsonl"
    journal = Journal(path)
    journal.add({"step": 1, "loss": 0.5, "validation/P-AUC": float("nan")})
    assert json.loads(path.read_text()) == {"step": 1, "loss": 0.5, "validation/P-AUC": None}
    length = journal.sync()
    journal.add({"step": 2, "loss": 0.25})
    journal.close()
    again = Journal(path, length)
    assert [row["step"] for row in again.rows] == [1]
    assert again.rows[0]["validation/P-AUC"] != again.rows[0]["validation/P-AUC"]
    again.add({"step": 2, "loss": 0.125})
    again.close()
    assert [json.loads(line)["loss"] for line in path.read_text().splitlines()] == [0.5, 0.125]


class Board:
    made = ()

    def __init__(self, folder, purge_step):
        self.folder, self.purge_step, self.shown, self.closed = folder, purge_step, [], False
        Board.made.append(self)

    def add_scalar(self, name, value, step):
        self.shown.append((step, name, value))

    def close(self):
        self.closed = True


def test_tensorboard_is_shown_every_row_and_takes_back_what_a_killed_run_showed(
    dataset, quick, tmp_path, monkeypatch
):
    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Board
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    monkeypatch.setattr(Board, "made", [])
    config = replace(quick, track="tensorboard", checkpoint_every=2)

    def stop(step, steps, losses):
        if step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, dataset, tmp_path, progress=stop)
    train(config, dataset, tmp_path)
    first, second = Board.made
    assert (first.purge_step, second.purge_step) == (1, 5)
    assert first.closed
    assert second.closed
    assert sorted({step for step, _, _ in first.shown}) == [2, 4]
    assert sorted({step for step, _, _ in second.shown}) == [6]
    assert {"loss", "learning_rate"} < {name for _, name, _ in second.shown}


def test_wandb_goes_on_with_the_run_of_the_folder(tmp_path, monkeypatch):
    logged, started = [], []

    class Run:
        def log(self, values, step):
            logged.append((step, values))

        def finish(self):
            logged.append("finished")

    module = types.ModuleType("wandb")
    module.init = lambda **settings: (started.append(settings), Run())[1]
    monkeypatch.setitem(sys.modules, "wandb", module)
    for _ in range(2):
        tracker = open_tracker("wandb", tmp_path, step=0, config={"seed": 3})
        tracker.add({"step": 4, "loss": 0.5, "validation/R@20": float("nan")})
        tracker.close()
    assert logged == [(4, {"loss": 0.5}), "finished"] * 2
    assert started[0] == started[1]
    assert started[0]["config"] == {"seed": 3}
    assert started[0]["resume"] == "allow"


@pytest.mark.parametrize(
    ("kind", "module"), [("tensorboard", "torch.utils.tensorboard"), ("wandb", "wandb")]
)
def test_a_tracker_that_is_not_installed_is_named(tmp_path, monkeypatch, kind, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        MissingDependencyError, match=rf"track={kind} needs .*haystack-psg\[track\]"
    ):
        open_tracker(kind, tmp_path, step=0, config={})
    with pytest.raises(InputError, match="needs a folder"):
        open_tracker(kind, None, step=0, config={})
