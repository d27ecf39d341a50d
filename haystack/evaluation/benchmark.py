"""Named benchmarks: what is graded, how, and a result that says all of it.

A number can be compared with another only if both were measured on the same images, by the same
choices. A definition fixes the choices and, where they are published, the checksums of the inputs;
a result records them all. Results of different inputs are never put side by side.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from haystack import files
from haystack.errors import InputError
from haystack.evaluation.comparison import Comparison, compare
from haystack.evaluation.evaluator import evaluate
from haystack.evaluation.report import Report, interval_text, without_nan
from haystack.io.datasets import BUNDLED, find_annotations
from haystack.io.haystack_npy import NoRelationColumn
from haystack.io.psg import read_psg
from haystack.metrics.kinds import METRICS, PANOPTIC_METRICS
from haystack.metrics.protocols import get_protocol
from haystack.scene_graph import SceneGraphDataset
from haystack.text import table

TASKS = ("predcls", "sgdet")
SAME = "same"
"""Value of ``training`` for: the images of the annotation file that are not graded."""
RESULT = "result.json"
"""Name of the result in the folder of a run."""
_KIND = "haystack benchmark result"
_FORMAT = 1


@dataclass
class Benchmark:
    """A benchmark's definition.

    Args:
        name: how it is cited, together with ``version``.
        version: counts up whenever a number could come out differently.
        title: for tables.
        source: where the annotations come from.
        task: ``predcls`` (pairs of annotated objects) or ``sgdet`` (the model's own objects).
        annotations: file or bundled data set; "" where everyone has to name their copy.
        annotations_sha256: of the annotation file; "" where none is published.
        training: file or bundled data set for zR and its kin, ``same`` for the other images of the
            annotation file, or None.
        training_sha256: of the training file, or "".
        pictures_sha256, masks_sha256: of the pictures and of the panoptic PNGs of the graded
            images, as results record them where they are read, or "".
        split: ``test``, ``train`` or ``all`` of its images.
        images: how many images that is; None where it is not known for sure.
        predicates: how many predicates the vocabulary has.
        protocol: whose choices to follow.
        ks: cut-offs of the recalls.
        metrics: what is computed.
        columns: the scalars that a table of models shows.
        rank_by: the column that orders it.
        replicates: resamples of the images behind the intervals.
        confidence: of the intervals.
        seed: of the resamples.
        baseline: training configuration of a baseline that is counted on the spot, or None.
    """

    name: str = ""
    version: int = 1
    title: str = ""
    source: str = ""
    task: str = "predcls"
    annotations: str = ""
    annotations_sha256: str = ""
    training: str | None = None
    training_sha256: str = ""
    pictures_sha256: str = ""
    masks_sha256: str = ""
    split: str = "test"
    images: int | None = None
    predicates: int = 0
    protocol: str = "paper"
    ks: list[int] = field(default_factory=lambda: [20, 50, 100])
    metrics: list[str] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    rank_by: str = ""
    replicates: int = 1000
    confidence: float = 0.95
    seed: int = 0
    baseline: str | None = None

    def __post_init__(self) -> None:
        if not self.name:
            return  # the defaults, before a file is laid over them
        if self.task not in TASKS:
            raise InputError(f"expected a task of {', '.join(TASKS)}, got {self.task!r}")
        if self.split not in ("train", "test", "all"):
            raise InputError(f"expected a split of train, test or all, got {self.split!r}")
        get_protocol(self.protocol)
        unknown = sorted(set(self.metrics) - set(METRICS))
        if unknown or not self.metrics:
            raise InputError(f"unknown metrics: {', '.join(unknown) or 'none are named'}")
        for column in (*self.columns, self.rank_by):
            kind, _, k = column.partition("@")
            if kind.partition("_")[0] not in self.metrics or (k and int(k) not in self.ks):
                raise InputError(f"the column {column!r} is not among the metrics that it computes")
        if self.rank_by not in self.columns:
            raise InputError(f"expected rank_by to be one of the columns, got {self.rank_by!r}")

    @property
    def title_and_version(self) -> str:
        """As it is cited in tables."""
        return f"{self.title or self.name} (version {self.version})"

    @property
    def sha256(self) -> str:
        """Of everything that can change a number; titles and columns cannot.

        Nor can the checksums of what only some results read; those that did are compared by them.
        """
        silent = {"title", "source", "columns", "rank_by", "baseline", "annotations", "training"}
        silent |= {"pictures_sha256", "masks_sha256"}
        choices = {k: v for k, v in asdict(self).items() if k not in silent}
        choices["training"] = self.training is not None
        return hashlib.sha256(json.dumps(choices, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class BenchmarkResult:
    """One model on one benchmark.

    Args:
        benchmark: the definition.
        model: the model's name, for tables.
        inputs: ``annotations``, ``predictions`` and, where they are used, ``training``,
            ``pictures`` and ``masks`` -> ``path``, ``sha256`` and ``is_pinned``: whether the
            definition knows the checksum and it is this one.
        environment: versions, machine, image and commit that it was measured with.
        report: what came out.
        folder: where the result was read from; relative paths of inputs start there.
    """

    benchmark: Benchmark
    model: str
    inputs: Mapping[str, Mapping[str, Any]]
    environment: Mapping[str, Any]
    report: Report
    folder: Path | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, NaN as None."""
        return {
            "kind": _KIND,
            "format": _FORMAT,
            "benchmark": {**asdict(self.benchmark), "sha256": self.benchmark.sha256},
            "model": self.model,
            "inputs": {name: dict(values) for name, values in self.inputs.items()},
            "environment": dict(self.environment),
            "columns": without_nan(
                {name: self.report.metrics[name] for name in self.benchmark.columns}
            ),
            "report": self.report.to_dict(),
        }

    def save(self, folder: str | Path) -> Path:
        """Write ``result.json`` to a folder, atomically; returns its path."""
        path = Path(folder) / RESULT
        content = self.to_dict()
        for given in content["inputs"].values():  # what lies in the folder moves with it
            place = Path(given["path"])
            if place.is_relative_to(path.parent.absolute()):
                given["path"] = place.relative_to(path.parent.absolute()).as_posix()
        files.write_json(path, content)
        return path

    def input_file(self, name: str) -> Path:
        """An input as a file, checked to be the one that was graded.

        Raises:
            InputError: it is not there any more, or another one.
        """
        given = self.inputs[name]["path"]
        path = BUNDLED.get(given) or (self.folder or Path()) / given
        if not path.is_file():
            raise InputError(f"the {name} of this result are not there any more: {path}")
        if files.sha256_file(path) != self.inputs[name]["sha256"]:
            raise InputError(
                f"the {name} are not those that the result was made from; run the benchmark again",
                path=path,
            )
        return path

    def __str__(self) -> str:
        unpinned = [name for name, given in self.inputs.items() if not given["is_pinned"]]
        unpinned = [name for name in unpinned if name != "predictions"]
        rows = [[name, self.report.metrics[name]] for name in self.benchmark.columns]
        if self.report.uncertainty is not None:
            for row in rows:
                interval = self.report.uncertainty.metrics[str(row[0])]
                row += [interval_text(interval)]
        header = ["metric", "value", f"{self.benchmark.confidence:.0%} interval"]
        lines = [
            f"{self.benchmark.title_and_version}: {self.model}",
            *table(header[: len(rows[0])], rows),
        ]
        if unpinned:
            lines.append(
                f"No checksum is published of the {' and the '.join(unpinned)}; the result records "
                "that of your copy, and compares with results of equal copies only."
            )
        return "\n".join(lines)


Opened = tuple[dict[str, dict[str, Any]], SceneGraphDataset]
"""The ``inputs`` of a result, without the predictions; and the annotations."""


def run_benchmark(
    benchmark: Benchmark,
    predictions: str | Path,
    *,
    model: str,
    annotations: str | Path | None = None,
    training: str | Path | None = None,
    opened: Opened | None = None,
    no_relation: NoRelationColumn = "last",
    device: str = "cpu",
    environment: Callable[[], Mapping[str, Any]] = dict,
) -> BenchmarkResult:
    """Grade a file of predictions as a benchmark says.

    Args:
        benchmark: the definition.
        predictions: a file that :data:`haystack.evaluation.READERS` lists.
        model: the model's name, for tables.
        annotations: where they lie; needed where the definition names no bundled data set.
        training: the same of the training annotations.
        opened: what :func:`open_inputs` gave, in place of the two before, where it was called.
        no_relation: where a ``.npy`` with P + 1 scores has "no relation".
        device: where the metrics run.
        environment: gives what the result records of the machine.

    Raises:
        InputError: an input is missing or is not the benchmark's: another checksum, another number
            of images or predicates, or predictions of another task.
    """
    if opened is None:
        opened = open_inputs(benchmark, annotations=annotations, training=training)
    inputs, dataset = dict(opened[0]), opened[1]
    source = Path(predictions)
    if not source.is_file():
        raise InputError("there is no such prediction file", path=source)
    inputs["predictions"] = {
        "path": str(source.absolute()),
        "sha256": files.sha256_file(source),
        "is_pinned": False,
        "no_relation": no_relation,
    }
    with_training: Any = dataset if benchmark.training == SAME else None
    if benchmark.training not in (None, SAME):
        with_training = inputs["training"]["path"]
    report = evaluate(
        dataset,
        source,
        benchmark.protocol,
        ks=benchmark.ks,
        metrics=benchmark.metrics,
        training=with_training,
        split=benchmark.split,  # type: ignore[arg-type]  # checked by its class
        no_relation=no_relation,
        replicates=benchmark.replicates,
        confidence=benchmark.confidence,
        seed=benchmark.seed,
        device=device,
    )
    _check_task(benchmark, report, source)
    absent = [name for name in benchmark.columns if name not in report.metrics]
    if absent:
        raise InputError(f"the benchmark's columns {', '.join(absent)} did not come out")
    return BenchmarkResult(benchmark, model, inputs, environment(), report)


def open_inputs(
    benchmark: Benchmark,
    *,
    annotations: str | Path | None = None,
    training: str | Path | None = None,
) -> Opened:
    """Find and check what a benchmark grades against, before anything is predicted.

    Raises:
        InputError: see :func:`run_benchmark`.
    """
    place = _place("annotations", benchmark.annotations, annotations, benchmark)
    inputs = {"annotations": _checked("annotations", place, benchmark.annotations_sha256)}
    if benchmark.training not in (None, SAME):
        named = _place("training", str(benchmark.training), training, benchmark)
        inputs["training"] = _checked("training", named, benchmark.training_sha256)
    elif training is not None:
        raise InputError(f"the benchmark {benchmark.name} takes no training annotations")
    keep = get_protocol(benchmark.protocol).repeated_labels == "keep"
    dataset = read_psg(place, allow_contradictions=keep)
    graphs = dataset.split(benchmark.split)  # type: ignore[arg-type]  # checked by its class
    counts = {"images": len(graphs), "predicates": dataset.vocabulary.num_predicates}
    for what, count in counts.items():
        wanted = getattr(benchmark, what)
        if wanted is not None and count != wanted:
            raise InputError(
                f"the benchmark {benchmark.name} is of {wanted} {what} (split {benchmark.split}), "
                f"these annotations have {count}; give the data set that it names: "
                f"{benchmark.source}",
                path=place,
            )
    if get_protocol(benchmark.protocol).regions != "boxes" and (
        benchmark.task == "sgdet" or set(benchmark.metrics) & set(PANOPTIC_METRICS)
    ):
        inputs["masks"] = _checked_files("masks", dataset, benchmark)
    return inputs, dataset


def seen_by_model(
    benchmark: Benchmark, dataset: SceneGraphDataset, *, reads_images: bool
) -> dict[str, dict[str, Any]]:
    """The ``inputs`` that a model predicts from: ``masks`` and, if it reads them, ``pictures``.

    Raises:
        InputError: a file is missing, or they are not the benchmark's.
    """
    names = ("masks", "pictures") if reads_images else ("masks",)
    return {name: _checked_files(name, dataset, benchmark) for name in names}


def read_result(path: str | Path) -> BenchmarkResult:
    """A result, from its file or the folder of its run.

    Raises:
        InputError: there is none, or it is none that this Haystack reads.
    """
    place = Path(path)
    file = place / RESULT if place.is_dir() else place
    if not file.is_file():
        raise InputError(
            f"expected the folder of a benchmark run, or its {RESULT}; run: haystack bench NAME "
            "--predictions P --out RUN",
            path=place,
        )
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"not valid JSON: {error}", path=file) from error
    if not isinstance(content, dict) or content.get("kind") != _KIND:
        raise InputError("expected the result of a benchmark, got other JSON", path=file)
    if content.get("format") != _FORMAT:
        raise InputError(
            f"its format is {content.get('format')}, this Haystack reads {_FORMAT}", path=file
        )
    try:
        definition = dict(content["benchmark"])
        recorded = definition.pop("sha256")
        benchmark = Benchmark(**definition)
        model, inputs, environment = (content[k] for k in ("model", "inputs", "environment"))
        report = Report.from_dict(content["report"])
        missing = {"annotations", "predictions"} - {*inputs} or {*benchmark.columns} - {
            *report.metrics
        }
        if missing or not isinstance(model, str) or not isinstance(environment, dict):
            raise KeyError(", ".join(sorted(missing)) or "model, environment")
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"this result is not whole ({type(error).__name__}: {error}); run the benchmark again",
            path=file,
        ) from error
    if benchmark.sha256 != recorded:
        raise InputError(
            "its definition does not match its own checksum; it was edited by hand", path=file
        )
    return BenchmarkResult(benchmark, model, inputs, environment, report, file.parent)


def same_benchmark(results: Sequence[BenchmarkResult]) -> Benchmark:
    """The one benchmark of all these results.

    Raises:
        InputError: they are of different benchmarks, versions or inputs.
    """
    first = results[0]
    for other in results[1:]:
        names = [f"{r.benchmark.name} version {r.benchmark.version}" for r in (first, other)]
        if first.benchmark.sha256 != other.benchmark.sha256:
            raise InputError(
                f"{first.model} was measured on {names[0]}, {other.model} on {names[1]}"
                + (", defined otherwise" if names[0] == names[1] else "")
                + "; numbers of different benchmarks do not compare"
            )
        # Of predictions that came as a file nobody knows what pictures they were made from.
        for name in sorted(({*first.inputs} & {*other.inputs}) - {"predictions"}):
            digests = [r.inputs[name]["sha256"] for r in (first, other)]
            if digests[0] != digests[1]:
                raise InputError(
                    f"the {name} of {first.model} and of {other.model} differ ({digests[0]} and "
                    f"{digests[1]}); measure both on the same"
                )
    return first.benchmark


def compare_results(
    a: BenchmarkResult,
    b: BenchmarkResult,
    *,
    replicates: int = 1000,
    min_images: int = 10,
    device: str = "cpu",
) -> Comparison:
    """Two models of one benchmark by a paired bootstrap, from the predictions behind the results.

    Args:
        a: one model's result.
        b: the other's.
        replicates: resamples of the images.
        min_images: what fewer images carry is not judged.
        device: where the metrics run.

    Raises:
        InputError: the results are of different benchmarks or inputs, or a file that they were
            made from is not there any more or is another one by now.
    """
    benchmark = same_benchmark((a, b))
    columns = {result.inputs["predictions"]["no_relation"] for result in (a, b)}
    if len(columns) > 1:
        raise InputError(
            "the two files have 'no relation' in different columns; convert one, and measure it "
            "again"
        )
    training = None
    if benchmark.training is not None:
        training = a.input_file("annotations" if benchmark.training == SAME else "training")
    comparison = compare(
        a.input_file("annotations"),
        a.input_file("predictions"),
        b.input_file("predictions"),
        benchmark.protocol,
        replicates=replicates,
        min_images=min_images,
        ks=benchmark.ks,
        metrics=benchmark.metrics,
        training=training,
        split=benchmark.split,  # type: ignore[arg-type]  # checked by its class
        no_relation=columns.pop(),
        confidence=benchmark.confidence,
        seed=benchmark.seed,
        device=device,
    )
    return replace(comparison, names=(a.model, b.model))


def leaderboard(results: Sequence[BenchmarkResult]) -> list[BenchmarkResult]:
    """Results of one benchmark, the best first by its ``rank_by``; undefined ones last."""
    column = same_benchmark(results).rank_by
    return sorted(results, key=lambda result: (result.report.place_by(column), result.model))


def _place(what: str, known: str, given: str | Path | None, benchmark: Benchmark) -> Path:
    if not known and given is None:
        raise InputError(f"the benchmark {benchmark.name} needs --{what}: {benchmark.source}")
    return find_annotations(given if given is not None else known)


def _checked(what: str, path: Path, wanted: str) -> dict[str, Any]:
    found = files.sha256_file(path)
    if wanted and found != wanted:
        raise InputError(
            f"the {what} are not those of the benchmark: SHA-256 {found}, expected {wanted}",
            path=path,
        )
    bundled = next((name for name, file in BUNDLED.items() if file == path), None)
    place = bundled or str(path.absolute())
    return {"path": place, "sha256": found, "is_pinned": bool(wanted)}


def _checked_files(what: str, dataset: SceneGraphDataset, benchmark: Benchmark) -> dict[str, Any]:
    """Files of the graded images by name and content, in the images' order, whatever the folder."""
    digest = hashlib.sha256()
    for graph in dataset.split(benchmark.split):  # type: ignore[arg-type]  # checked by its class
        name = graph.file_name if what == "pictures" else graph.pan_seg_file_name
        if name is None:
            continue
        path = dataset.path_of(name)
        if not path.is_file():
            kind = "picture" if what == "pictures" else "panoptic PNG"
            raise InputError(f"the {kind} of an annotated image is missing", path=path)
        digest.update(f"{path.name} {files.sha256_file(path)}\n".encode())
    found, wanted = digest.hexdigest(), getattr(benchmark, f"{what}_sha256")
    place = (dataset.root or Path()).absolute()
    if wanted and found != wanted:
        raise InputError(
            f"the {what} are not those of the benchmark: SHA-256 {found}, expected {wanted}",
            path=place,
        )
    return {"path": str(place), "sha256": found, "is_pinned": bool(wanted)}


def _check_task(benchmark: Benchmark, report: Report, predictions: Path) -> None:
    own, predicted = report.support["own_objects"], report.images - report.support["missing_images"]
    if benchmark.task == "predcls" and own:
        raise InputError(
            f"{benchmark.name} asks about pairs of the annotated objects, and {own} of {predicted} "
            "images are predicted with objects of the model's own; grade those as SGDet",
            path=predictions,
        )
    if benchmark.task == "sgdet" and own < predicted:
        raise InputError(
            f"{benchmark.name} asks for objects that the model found, and {predicted - own} of "
            f"{predicted} images are predicted without them; grade those as PredCls",
            path=predictions,
        )
