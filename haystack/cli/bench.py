"""The verb ``bench``: named benchmarks, and a result that says what was measured."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from haystack.cli.outcome import Outcome
from haystack.cli.progress import Progress, Watched
from haystack.errors import InputError
from haystack.text import table

if TYPE_CHECKING:
    from haystack.evaluation.benchmark import Benchmark
    from haystack.models.relation.protocol import RelationModel
    from haystack.scene_graph import SceneGraphDataset

_FOLDER = "bench"


def add_verbs(verbs: Any) -> None:
    """Declare the verb."""
    bench = verbs.add_parser(
        "bench", help="run a named benchmark, or list them", description=_bench.__doc__
    )
    bench.add_argument(
        "benchmark",
        nargs="?",
        metavar="NAME",
        help="psg_mini_predcls and the like, or a YAML file; without it, the known ones are listed",
    )
    what = bench.add_mutually_exclusive_group()
    what.add_argument(
        "--predictions",
        type=Path,
        help="a model's predictions, in any format that evaluate reads",
    )
    what.add_argument("--model", help="predict first (PredCls): a model as haystack predict takes")
    what.add_argument(
        "--baseline",
        action="store_true",
        help="count the benchmark's frequency baseline, and measure that",
    )
    bench.add_argument("--annotations", help="where the benchmark's annotation file lies")
    bench.add_argument("--training", help="where its training annotations lie")
    bench.add_argument("--name", help="of the model, for tables (default: that of its file)")
    bench.add_argument("--out", type=Path, help="folder of the run: result.json and report.txt")
    bench.add_argument(
        "--no-relation",
        choices=("last", "first"),
        default="last",
        help="where a .npy with one score more than predicates has 'no relation'",
    )
    bench.add_argument("--device", default="cpu")
    bench.set_defaults(run=_bench)


def _bench(args: argparse.Namespace) -> Outcome:
    """Measure a model on a named benchmark, whose images and choices are fixed.

    The result records the definition, checksums of all inputs, and the environment. haystack
    compare and haystack report read the folder that it is written to.
    """
    if args.benchmark is None:
        return _known()
    from haystack import files
    from haystack.environment import environment
    from haystack.evaluation.benchmark import open_inputs, run_benchmark

    benchmark = load_benchmark(args.benchmark)
    if args.out is None:
        raise InputError("expected --out RUN, the folder to write the result to")
    _check_asked(args, benchmark)
    opened = open_inputs(benchmark, annotations=args.annotations, training=args.training)
    if args.predictions is not None:
        predictions, name = args.predictions, args.predictions.stem
    else:
        predictions, name, seen = _predict(args, benchmark, opened[1])
        opened = ({**opened[0], **seen}, opened[1])
    result = run_benchmark(
        benchmark,
        predictions,
        model=args.name or name,
        opened=opened,
        no_relation=args.no_relation,
        device=args.device,
        environment=lambda: environment(args.device),
    )
    written = result.save(args.out)
    files.write_text(args.out / "report.txt", f"{result}\n\n{result.report}\n")
    return Outcome(f"{result}\nwrote {written}", result.to_dict())


def load_benchmark(name: str) -> Benchmark:
    """A definition by its file, or one of Haystack's own by its name.

    Raises:
        InputError: there is none of that name, or it is not a benchmark's.
    """
    from haystack.cli.configs import find_config
    from haystack.config import load_config
    from haystack.evaluation.benchmark import Benchmark

    own = Path(name).is_file() or "/" in name
    file = find_config(name if own else f"{_FOLDER}/{name.replace('-', '_')}")
    benchmark = load_config(Benchmark(), file)
    if not benchmark.name:
        raise InputError("expected the definition of a benchmark, with a name", path=file)
    return benchmark


def _known() -> Outcome:
    from haystack.cli.configs import own_configs

    known = {name.partition("/")[2]: load_benchmark(name) for name in own_configs(_FOLDER)}
    rows = [
        [name, b.version, b.task, b.protocol, "comes with Haystack" if b.annotations else "yours"]
        for name, b in known.items()
    ]
    header = ("benchmark", "version", "task", "protocol", "annotations")
    data = {
        name: {"title": b.title, "source": b.source, "task": b.task} for name, b in known.items()
    }
    lines = [*table(header, rows), "run: haystack bench NAME --predictions P --out RUN"]
    return Outcome("\n".join(lines), {"benchmarks": data})


def _check_asked(args: argparse.Namespace, benchmark: Benchmark) -> None:
    """Refuse what cannot be measured before anything is read."""
    if args.predictions is not None:
        return
    if args.model is None and not args.baseline:
        raise InputError("expected what to measure: --predictions P, --model M or --baseline")
    if benchmark.task != "predcls":
        raise InputError(
            f"{benchmark.name} asks for objects that the model finds; predict them with haystack "
            "predict PICTURES --segmenter ... --out P.parquet, and give --predictions P.parquet"
        )


def _predict(
    args: argparse.Namespace, benchmark: Benchmark, dataset: SceneGraphDataset
) -> tuple[Path, str, dict[str, dict[str, Any]]]:
    """Predict into the run's folder; returns the file, the model's name, and what it saw."""
    from haystack.evaluation.benchmark import seen_by_model
    from haystack.io.prediction_parquet import write_prediction_parquet
    from haystack.models.relation.predict import predict_dataset

    split: Any = benchmark.split  # checked by its class
    written = args.out / "predictions.parquet"
    with tempfile.TemporaryDirectory() as counted:
        model, name = _model(args, benchmark, dataset, Path(counted))
        seen = seen_by_model(benchmark, dataset, reads_images=model.reads_images)
        progress = Progress("predict", "image", len(dataset.split(split)))
        scores = Watched(predict_dataset(model, dataset, split), progress)
        write_prediction_parquet(scores, written, dataset.vocabulary.predicate_classes)
    return written, name, seen


def _model(
    args: argparse.Namespace, benchmark: Benchmark, dataset: SceneGraphDataset, folder: Path
) -> tuple[RelationModel, str]:
    from haystack.models.relation.references import ModelReference

    if args.model is not None:
        reference = ModelReference.parse(args.model)
        return reference.load(dataset.vocabulary, args.device)[0], Path(args.model).stem
    if benchmark.baseline is None:
        raise InputError(f"{benchmark.name} names no baseline; give --predictions or --model")
    from haystack.cli.configs import find_config
    from haystack.config import load_config
    from haystack.io import read_psg
    from haystack.training.frequency import FrequencyConfig, count_model

    config = load_config(FrequencyConfig(), find_config(benchmark.baseline))
    return count_model(config, read_psg(config.annotations), folder), Path(benchmark.baseline).stem
