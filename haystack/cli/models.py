"""Verbs around models: ``train``, ``predict``, ``evaluate`` and ``compare``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from haystack.cli.outcome import Outcome
from haystack.cli.stages import find_model
from haystack.errors import InputError


def add_verbs(verbs: Any) -> None:
    """Declare the verbs."""
    train = verbs.add_parser(
        "train", help="train or retrain a relation model", description=_train.__doc__
    )
    train.add_argument("config", help="YAML file, or one of Haystack's own: train/vctree_psg_mini")
    train.add_argument("settings", nargs="*", metavar="key=value", help="e.g. annotations=A.json")
    train.add_argument("--out", type=Path, required=True, help="folder for model and metrics")
    train.set_defaults(run=_train)

    predict = verbs.add_parser(
        "predict", help="score the annotated objects of a data set", description=_predict.__doc__
    )
    predict.add_argument("annotations", help="PSG or Haystack JSON, or 'psg-mini'")
    predict.add_argument("--model", required=True, help="a model.safetensors, or its folder")
    predict.add_argument(
        "--out",
        type=Path,
        required=True,
        help="prediction file: .parquet, or .npy as the authors' tools write it",
    )
    predict.add_argument("--split", choices=("train", "test", "all"), default="all")
    predict.add_argument("--device", default="cpu")
    predict.set_defaults(run=_predict)

    evaluate = verbs.add_parser(
        "evaluate", help="grade predictions against annotations", description=_evaluate.__doc__
    )
    evaluate.add_argument("--annotations", required=True, help="PSG or Haystack JSON, or psg-mini")
    evaluate.add_argument("--predictions", required=True, help=_PREDICTIONS)
    evaluate.add_argument(
        "--ci", type=int, default=0, metavar="N", help="intervals from N resamples of the images"
    )
    _add_measuring_arguments(evaluate)
    evaluate.set_defaults(run=_evaluate)

    compare = verbs.add_parser(
        "compare", help="say where two models really differ", description=_compare.__doc__
    )
    compare.add_argument("a", metavar="A", help=_PREDICTIONS)
    compare.add_argument("b", metavar="B", help="the same of the other model")
    compare.add_argument("--annotations", required=True, help="PSG or Haystack JSON, or psg-mini")
    compare.add_argument(
        "--ci", type=int, default=1000, metavar="N", help="resamples of the images (default: 1000)"
    )
    compare.add_argument(
        "--min-images",
        type=int,
        default=10,
        help="predicates in fewer images are not judged (default: 10)",
    )
    _add_measuring_arguments(compare)
    compare.set_defaults(run=_compare)


_PREDICTIONS = (
    "the authors' .npy, Haystack's .parquet, an SGBench file, an OpenPSG or fair-psgg pickle"
)


def _add_measuring_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--protocol", default="paper", help="whose choices to follow (default: paper)"
    )
    verb.add_argument(
        "--split",
        choices=("train", "test", "all"),
        help="default: the images in test_image_ids; where it is empty, all",
    )
    verb.add_argument("--ks", nargs="+", type=int, default=[20, 50, 100], metavar="K")
    verb.add_argument("--metrics", nargs="+", metavar="NAME", help="only these, e.g. P-AUC mR zR")
    verb.add_argument("--training", help="training annotations, for zR, wR and wIMR")
    verb.add_argument(
        "--no-relation",
        choices=("last", "first"),
        default="last",
        help="where a .npy with one score more than predicates has 'no relation'",
    )
    verb.add_argument("--confidence", type=float, default=0.95, help="of the intervals")
    verb.add_argument("--seed", type=int, default=0, help="of the resamples")
    verb.add_argument("--device", default="cpu")
    verb.add_argument("--out", type=Path, help="also write the result there, as JSON")


def _train(args: argparse.Namespace) -> Outcome:
    """Train a relation model; ``init=MODEL`` starts from another one."""
    from haystack.cli.configs import find_config
    from haystack.config import load_config
    from haystack.io import read_psg
    from haystack.training.config import TrainConfig
    from haystack.training.trainer import train

    config = load_config(TrainConfig(), find_config(args.config), args.settings)
    dataset = read_psg(config.annotations)
    result = train(config, dataset, args.out, progress=_progress("train"))
    last = result.metrics[-1] if result.metrics else {}
    model = args.out / "model.safetensors"
    losses = ", ".join(f"{key} {value:.4g}" for key, value in last.items())
    text = f"trained {result.step} steps in {result.seconds:.0f} s ({losses}); wrote {model}"
    return Outcome(
        text, {"model": model, "step": result.step, "seconds": result.seconds, "last": last}
    )


def _predict(args: argparse.Namespace) -> Outcome:
    """Score every ordered pair of the annotated objects of each image (PredCls)."""
    from haystack.io import read_psg
    from haystack.io.haystack_npy import write_haystack_npy
    from haystack.io.prediction_parquet import write_prediction_parquet
    from haystack.models.relation.files import load_relation_model
    from haystack.models.relation.predict import predict_dataset

    if args.out.suffix not in (".parquet", ".npy"):
        raise InputError("expected a name that ends in .parquet or .npy", path=args.out)
    dataset = read_psg(args.annotations)
    model = load_relation_model(find_model(args.model), args.device)
    predictions = predict_dataset(model, dataset, args.split)
    if args.out.suffix == ".npy":
        write_haystack_npy(predictions, args.out)
    else:
        write_prediction_parquet(predictions, args.out, dataset.vocabulary.predicate_classes)
    count = len(dataset.split(args.split))
    return Outcome(f"wrote {count} images to {args.out}", {"out": args.out, "images": count})


def _evaluate(args: argparse.Namespace) -> Outcome:
    """Grade a model's predicate scores: P-AUC, PDD, PDO, and every recall of the field."""
    from haystack import evaluate

    report = evaluate(
        args.annotations, args.predictions, replicates=args.ci, **_measuring_arguments(args)
    )
    if args.out is not None:
        report.save(args.out)
    return Outcome(str(report), report.to_dict())


def _compare(args: argparse.Namespace) -> Outcome:
    """Compare two models on the same images by a paired bootstrap, predicate by predicate."""
    from haystack import compare

    comparison = compare(
        args.annotations,
        args.a,
        args.b,
        replicates=args.ci,
        min_images=args.min_images,
        **_measuring_arguments(args),
    )
    if args.out is not None:
        comparison.save(args.out)
    return Outcome(str(comparison), comparison.to_dict())


def _measuring_arguments(args: argparse.Namespace) -> dict[str, Any]:
    names = ("protocol", "split", "ks", "metrics", "training", "no_relation", "confidence", "seed")
    return {name: getattr(args, name) for name in (*names, "device")}


def _progress(what: str) -> Callable[[int, int, Mapping[str, float]], None]:
    """A bar on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        return lambda step, steps, losses: None
    from tqdm import tqdm

    bar = tqdm(desc=what, unit="step", file=sys.stderr)

    def show(step: int, steps: int, losses: Mapping[str, float]) -> None:
        bar.total = steps
        bar.set_postfix({key: f"{value:.3g}" for key, value in losses.items()}, refresh=False)
        bar.update(step - bar.n)
        if step >= steps:
            bar.close()

    return show
