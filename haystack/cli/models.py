"""Verbs around models: ``train``, ``evaluate`` and ``compare``."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from haystack.cli.outcome import Outcome
from haystack.cli.progress import training_progress
from haystack.errors import InputError

if TYPE_CHECKING:
    from haystack.evaluation.comparison import Comparison
    from haystack.training.config import TrainConfig
    from haystack.training.frequency import FrequencyConfig
    from haystack.vocabulary import Vocabulary


def add_verbs(verbs: Any) -> None:
    """Declare the verbs."""
    train = verbs.add_parser(
        "train", help="train or retrain a relation model", description=_train.__doc__
    )
    train.add_argument(
        "settings",
        nargs="*",
        metavar="CONFIG key=value",
        help="YAML file, or one of Haystack's own, e.g. train/vctree_psg_mini; then settings, e.g. "
        "annotations=A.json. Without CONFIG, that of --init's own training",
    )
    train.add_argument("--out", type=Path, required=True, help="folder of the run")
    train.add_argument(
        "--init", metavar="MODEL", help="model to start from: a file, or the folder of a run"
    )
    train.add_argument(
        "--model",
        metavar="CLASS",
        help="train a class of your own, package.module:factory or file.py:Class, in place of the "
        "configuration's model",
    )
    train.add_argument(
        "--annotations",
        action="append",
        default=[],
        metavar="FILE",
        help="annotations to mix in, e.g. a campaign's export/; the configuration's mix_share says "
        "how much of each batch they are",
    )
    train.set_defaults(run=_train, takes_name=True)

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
    compare.add_argument(
        "a", metavar="A", help=f"{_PREDICTIONS}; or the folder of a run of haystack bench"
    )
    compare.add_argument("b", metavar="B", help="the same of the other model")
    compare.add_argument(
        "--annotations",
        help="PSG or Haystack JSON, or psg-mini; runs of haystack bench name their own",
    )
    compare.add_argument(
        "--ci", type=int, default=1000, metavar="N", help="resamples of the images (default: 1000)"
    )
    compare.add_argument(
        "--min-images",
        type=int,
        default=10,
        help="what fewer images carry is not judged (default: 10)",
    )
    _add_measuring_arguments(compare)
    compare.set_defaults(run=_compare)


_PREDICTIONS = (
    "the authors' .npy, Haystack's .parquet, an SGBench file, an OpenPSG or fair-psgg pickle"
)


_MEASURING_DEFAULTS = {
    "protocol": "paper",
    "split": None,
    "ks": [20, 50, 100],
    "metrics": None,
    "training": None,
    "no_relation": "last",
    "confidence": 0.95,
    "seed": 0,
}


def _add_measuring_arguments(verb: argparse.ArgumentParser) -> None:
    verb.set_defaults(**_MEASURING_DEFAULTS)
    verb.add_argument("--protocol", help="whose choices to follow (default: paper)")
    verb.add_argument(
        "--split",
        choices=("train", "test", "all"),
        help="default: the images in test_image_ids; where it is empty, all",
    )
    verb.add_argument("--ks", nargs="+", type=int, metavar="K", help="default: 20 50 100")
    verb.add_argument(
        "--metrics",
        nargs="+",
        metavar="NAME",
        help="only these, e.g. P-AUC mR zR; PQ SQ RQ only if named",
    )
    verb.add_argument("--training", help="training annotations, for zR, wR and wIMR")
    verb.add_argument(
        "--no-relation",
        choices=("last", "first"),
        help="where a .npy with one score more than predicates has 'no relation' (default: last)",
    )
    verb.add_argument("--confidence", type=float, help="of the intervals (default: 0.95)")
    verb.add_argument("--seed", type=int, help="of the resamples (default: 0)")
    verb.add_argument("--device", default="cpu")
    verb.add_argument("--out", type=Path, help="also write the result there, as JSON")


def _train(args: argparse.Namespace) -> Outcome:
    """Train a relation model, or go on where a run that was killed had come to.

    Under torchrun, all processes train it together. Run again with the same --out, it resumes.
    """
    from haystack.training.frequency import FrequencyConfig
    from haystack.training.sources import read_annotations
    from haystack.training.trainer import train

    config = _train_config(args)
    if isinstance(config, FrequencyConfig):
        return _count(config, args.out)
    if args.model is None:
        result = train(config, out=args.out, progress=training_progress())
    else:
        datasets = read_annotations(config)
        model = _own_model(args.model, datasets[0].vocabulary, config.seed)
        result = train(config, datasets, args.out, model=model, progress=training_progress())
    if not result.is_first:
        args.json = False  # one process speaks
        return Outcome("")
    file, summary = args.out / "model.safetensors", result.summary
    values = ", ".join(
        f"{key} {value:.4g}" for key, value in summary["values"].items() if value is not None
    )
    if result.was_finished:
        text = f"this run is finished already: {file} ({values})"
    else:
        resumed = f", resumed after step {result.resumed_from}" if result.resumed_from else ""
        text = (
            f"trained {summary['steps']} steps on {sum(summary['images'])} images in "
            f"{result.seconds:.0f} s{resumed} ({values}); wrote {file}"
        )
    data = {
        "model": file,
        "step": result.step,
        "seconds": result.seconds,
        "resumed_from": result.resumed_from,
        "was_finished": result.was_finished,
        "last": result.metrics[-1] if result.metrics else {},
        "summary": summary,
    }
    return Outcome(text, data)


def _own_model(name: str, vocabulary: Vocabulary, seed: int) -> Any:
    """A class of the user's own, its first weights drawn from the run's seed."""
    import torch

    from haystack.models.relation.references import ModelReference

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return ModelReference.parse(name).load(vocabulary)[0]


def _train_config(args: argparse.Namespace) -> TrainConfig | FrequencyConfig:
    """Settings over the file over, without a file, what the start model was trained with."""
    from haystack.cli.configs import find_config
    from haystack.config import load_config, read_key
    from haystack.models.relation.references import ModelReference
    from haystack.training.config import TrainConfig
    from haystack.training.frequency import FrequencyConfig
    from haystack.training.sources import annotation_place

    named = [word for word in args.settings if "=" not in word or Path(word).is_file()]
    if len(named) > 1:
        raise InputError(f"expected one configuration file, got {' and '.join(named)}")
    settings = [word for word in args.settings if word not in named]
    file = find_config(named[0]) if named else None
    if file is not None and read_key(file, "kind") == "frequency":
        if args.init is not None or args.annotations or args.model is not None:
            raise InputError(
                "the frequency baseline is counted anew from annotations=A.json; "
                "--init, --model and --annotations are for networks"
            )
        return load_config(FrequencyConfig(), file, settings)
    start, settings = _start(args.init, settings)
    if start is not None and args.model is not None:
        raise InputError(
            "--init names a model to start from, --model a class; for a class with weights write "
            "--model CLASS@RUN"
        )
    if start is not None:
        init = ModelReference.parse(start).file
        if init is None or init.suffix == ".py":
            raise InputError(f"expected a model's file or folder to start from, got {start}")
        settings.append(f"init={init}")
        beside = init.parent / "config.yaml"
        if file is None and beside.is_file():
            file = beside
    if file is None and start is None:
        raise InputError(
            "expected a configuration, for example train/vctree_psg_mini, or --init MODEL"
        )
    mixed = list(args.annotations)
    if mixed and file is None and not any(word.startswith("annotations=") for word in settings):
        settings.append(f"annotations={mixed.pop(0)}")  # there is nothing to mix them into
    config = load_config(TrainConfig(), file, settings)
    # A campaign names its export in every round; the start model's run may have mixed it in before.
    known = set(map(annotation_place, config.mix))
    new = [name for name in mixed if annotation_place(name) not in known]
    return replace(config, mix=[*config.mix, *new])


def _start(named: str | None, settings: list[str]) -> tuple[str | None, list[str]]:
    """The model to start from, of ``--init`` or of ``init=``, and the other settings."""
    given = [word.partition("=")[2] for word in settings if word.startswith("init=")]
    if named is not None and given:
        raise InputError(f"both --init {named} and init={given[0]} name a model to start from")
    if not given or given[-1] in ("", "null"):
        return named, settings
    return given[-1], [word for word in settings if not word.startswith("init=")]


def _count(config: FrequencyConfig, out: Path) -> Outcome:
    from haystack.io import read_psg
    from haystack.training.frequency import count_model

    dataset = read_psg(config.annotations)
    count_model(config, dataset, out)
    images = len(dataset.split(config.split))  # type: ignore[arg-type]  # checked by its class
    model = out / "model.safetensors"
    return Outcome(
        f"counted the predicates of {images} images; wrote {model}",
        {"model": model, "images": images},
    )


def _evaluate(args: argparse.Namespace) -> Outcome:
    """Grade a model's predicate scores: P-AUC, PDD, PDO, and every recall of the field."""
    from haystack import evaluate

    report = evaluate(
        args.annotations, args.predictions, replicates=args.ci, **_measuring_arguments(args)
    )
    if args.out is not None:
        report.save(args.out, run=_run_record(args))
    return Outcome(str(report), report.to_dict())


def _run_record(args: argparse.Namespace) -> dict[str, Any]:
    """What was asked, of which files with which checksums, and what answered."""
    from haystack.environment import environment
    from haystack.files import sha256_file
    from haystack.io.datasets import BUNDLED

    inputs = {
        name: {"path": place, "sha256": sha256_file(BUNDLED.get(place, Path(place)))}
        for name in ("annotations", "predictions", "training")
        if (place := getattr(args, name)) is not None
    }
    settings = {"replicates": args.ci, **_measuring_arguments(args)}
    del settings["training"]
    return {"settings": settings, "inputs": inputs, "environment": environment(args.device)}


def _compare(args: argparse.Namespace) -> Outcome:
    """Compare two models on the same images by a paired bootstrap, predicate by predicate."""
    from haystack import compare

    if args.annotations is None:
        comparison = _compare_runs(args)
    else:
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


def _compare_runs(args: argparse.Namespace) -> Comparison:
    """Two runs of one benchmark, by its choices."""
    from haystack.evaluation.benchmark import compare_results, read_result

    for run in (args.a, args.b):
        if not Path(run).is_dir() and Path(run).suffix != ".json":
            raise InputError(
                "expected --annotations A.json beside files of predictions; only the folders of "
                "runs of haystack bench name their own",
                path=run,
            )
    for name, default in _MEASURING_DEFAULTS.items():
        if getattr(args, name) != default:
            raise InputError(
                f"the runs' benchmark fixes it; leave out --{name.replace('_', '-')}, or give "
                "--annotations and the files of predictions"
            )
    results = (read_result(args.a), read_result(args.b))
    return compare_results(
        *results, replicates=args.ci, min_images=args.min_images, device=args.device
    )


def _measuring_arguments(args: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(args, name) for name in (*_MEASURING_DEFAULTS, "device")}
