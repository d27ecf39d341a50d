"""Verbs around models: ``train``, ``predict`` and ``evaluate``."""

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
    evaluate.add_argument(
        "--predictions", required=True, help="the authors' .npy or Haystack's .parquet"
    )
    evaluate.add_argument("--protocol", default="paper", help="paper (default) or haystack-v1")
    evaluate.add_argument(
        "--split",
        choices=("train", "test", "all"),
        help="default: the images in test_image_ids; where it is empty, all",
    )
    evaluate.add_argument("--ks", nargs="+", type=int, default=[20, 50, 100], metavar="K")
    evaluate.add_argument(
        "--no-relation",
        choices=("last", "first"),
        default="last",
        help="where a .npy with one score more than predicates has 'no relation'",
    )
    evaluate.add_argument("--device", default="cpu")
    evaluate.add_argument("--out", type=Path, help="also write the report there, as JSON")
    evaluate.set_defaults(run=_evaluate)


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
    """Grade a model's predicate scores: P-AUC, PDD, PDO, and the recalls."""
    from haystack import evaluate

    report = evaluate(
        args.annotations,
        args.predictions,
        args.protocol,
        ks=args.ks,
        split=args.split,
        no_relation=args.no_relation,
        device=args.device,
    )
    if args.out is not None:
        report.save(args.out)
    return Outcome(str(report), report.to_dict())


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
