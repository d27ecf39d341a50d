import io
import json
import logging
import os
import subprocess
import sys

import pytest
from tqdm import tqdm

from haystack.cli import main
from haystack.cli.configs import find_config
from haystack.cli.parser import parse
from haystack.errors import InputError
from haystack.io import read_psg
from haystack.pipeline.config import load_config
from haystack.weights import known

VERBS = (
    "import",
    *("demo", "doctor", "embed", "cluster", "segment", "score", "propose", "annotate", "export"),
    *(
        "merge",
        "stats",
        "train",
        "convert",
        "predict",
        "evaluate",
        "compare",
        "bench",
        "status",
        "weights",
    ),
)


def run(capsys, *argv):
    code = main([str(word) for word in argv])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_json_goes_to_stdout_and_text_to_stderr(capsys):
    code, out, err = run(capsys, "stats", "psg-mini", "--json")
    assert code == 0
    content = json.loads(out)
    assert content["positives"] == 707
    assert content["negatives"] == 608
    assert content["no_relation_pairs"] == 137
    assert content["per_predicate"]["eating"] == {"positives": 1, "negatives": 13, "images": 1}
    assert "in front of" in err
    code, out, err = run(capsys, "stats", "psg-mini", "--split", "test")
    assert code == 0
    assert out == ""
    assert "positives: 320" in err


def test_bad_input_is_one_sentence_and_exit_code_2(capsys):
    code, out, err = run(capsys, "stats", "none.json", "--json")
    assert code == 2
    assert json.loads(out)["exit_code"] == 2
    assert err.count("\n") == 1
    assert err.startswith("haystack stats: none.json: no such annotation file")


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["nonsense"],
        ["stats"],
        ["stats", "psg-mini", "--nonsense"],
        ["stats", "psg-mini", "a=b"],
        ["embed", "work", "--config", "x", "nonsense"],
    ],
)
def test_usage_errors_are_one_line_and_exit_code_2(capsys, argv):
    with pytest.raises(SystemExit) as stopped:
        main(argv)
    assert stopped.value.code == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert "--help" in captured.err


def test_settings_may_stand_before_and_after_options():
    args = parse(["embed", "work", "a=1", "--config", "c", "b=-2", "--json"])
    assert args.settings == ["a=1", "b=-2"]
    assert args.config == "c"


def test_help_lists_every_verb(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    for verb in VERBS:
        assert f"\n    {verb} " in text


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(capsys, verb):
    with pytest.raises(SystemExit) as stopped:
        main([verb, "--help"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: haystack {verb}")


def test_the_module_and_the_command_are_the_same():
    done = subprocess.run(
        [sys.executable, "-m", "haystack", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("haystack ")


def test_merge_writes_a_file_and_reports(capsys, tmp_path):
    out = tmp_path / "merged.json"
    code, text, _ = run(
        capsys, "merge", "psg-mini", "psg-mini", "--prefix-ids", "again-", "--out", out, "--json"
    )
    assert code == 0
    content = json.loads(text)
    assert content["images"] == 106
    assert content["merges"][0]["new_images"] == 53
    assert len(json.loads(out.read_text())["data"]) == 106


def test_own_configurations_are_found_by_name():
    assert find_config("pipeline/sa1b").name == "sa1b.yaml"
    segment = load_config(find_config("pipeline/sa1b")).segment
    assert (segment.kind, segment.device) == ("maskdino", "cuda")
    assert known(segment.weights).use == "segment.weights"
    with pytest.raises(InputError, match=r"Haystack's own are: .*pipeline/sa1b"):
        find_config("pipeline/none")


def test_doctor_finds_a_foreign_owner_of_the_import_name(capsys, tmp_path, monkeypatch):
    code, out, _ = run(capsys, "doctor", "--json")
    assert code == 0
    assert json.loads(out)["problems"] == []
    metadata = tmp_path / "haystack_ai-3.4.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: haystack-ai\nVersion: 3.4.1\n")
    monkeypatch.syspath_prepend(tmp_path)
    code, out, err = run(capsys, "doctor", "--json")
    assert code == 1
    assert "'haystack-ai' is installed and owns the import name" in json.loads(out)["problems"][0]
    assert "PROBLEM" in err


def test_unexpected_errors_name_themselves_and_the_way_to_the_traceback(capsys, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("surprise")

    monkeypatch.setattr("haystack.io.read_psg", broken)
    code, _, err = run(capsys, "stats", "psg-mini")
    assert code == 1
    assert "unexpected ZeroDivisionError: surprise (run again with --debug)" in err
    with pytest.raises(ZeroDivisionError):
        main(["stats", "psg-mini", "--debug"])


def test_a_merged_file_finds_its_masks_from_its_own_folder(capsys, tmp_path):
    out = tmp_path / "elsewhere" / "merged.json"
    code, text, _ = run(
        capsys, "merge", "psg-mini", "psg-mini", "--prefix-ids", "x", "--out", out, "--json"
    )
    assert code == 0
    assert json.loads(text)["missing_masks"] == 0
    dataset = read_psg(out)
    assert all(dataset.path_of(graph.pan_seg_file_name).is_file() for graph in dataset.graphs)


def test_a_verb_mistyped_is_answered_by_the_nearest(capsys):
    with pytest.raises(SystemExit):
        main(["doctro"])
    assert "unknown 'doctro'; nearest: doctor" in capsys.readouterr().err


def test_a_reader_that_stops_early_is_no_failure():
    command = f"{sys.executable} -m haystack stats psg-mini --json 2>/dev/null | head -c 10"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr == ""


def test_predictions_are_written_in_the_format_of_their_name(capsys, tmp_path):
    code, _, err = run(
        capsys, "predict", "psg-mini", "--model", tmp_path, "--out", tmp_path / "p.txt"
    )
    assert code == 2
    assert "ends in .parquet or .npy; this names a file" in err
    code, _, err = run(
        capsys, "predict", "psg-mini", "--model", tmp_path, "--out", tmp_path / "p.npy"
    )
    assert code == 2
    assert "no such relation model" in err


def test_status_refuses_a_folder_that_is_no_workspace(capsys, tmp_path):
    code, _, err = run(capsys, "status", tmp_path)
    assert code == 2
    assert "no workspace" in err


def test_usage_errors_are_json_too_where_json_is_asked_for(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["haystack", "stats", "--json"])
    with pytest.raises(SystemExit):
        main(["stats", "--json"])
    assert json.loads(capsys.readouterr().out)["exit_code"] == 2


def test_names_that_the_terminal_cannot_spell_stop_nothing(tmp_path):
    path = tmp_path / "names.json"
    path.write_text(
        json.dumps(
            {
                "thing_classes": ["caf\u00e9"],
                "stuff_classes": [],
                "predicate_classes": ["\u00fcber"],
                "data": [],
            }
        )
    )
    done = subprocess.run(
        [sys.executable, "-m", "haystack", "stats", path, "--json"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert list(json.loads(done.stdout)["per_predicate"]) == ["\u00fcber"]


def test_a_message_stands_above_a_progress_bar_and_not_behind_it(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    main(["status", "psg-mini-is-no-workspace"])  # sets the log up, on this stderr
    with tqdm(total=2, desc="bar", file=screen):
        logging.getLogger("haystack.test").info("forty-two rows")
    before, said, after = screen.getvalue().partition("forty-two rows\n")
    assert said
    assert "bar:" in before
    assert before.rpartition("\r")[2].strip() == ""  # the bar was wiped from the line
    assert "bar:" in after
