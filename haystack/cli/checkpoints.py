"""The verb ``convert``: other people's checkpoints as models of ours."""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from haystack.cli.outcome import Outcome
from haystack.errors import InputError


def add_verbs(verbs: Any) -> None:
    """Declare the verb."""
    convert = verbs.add_parser(
        "convert",
        help="turn an OpenPSG checkpoint into a relation model",
        description=_convert.__doc__,
    )
    convert.add_argument("checkpoint", metavar="CHECKPOINT", help="OpenPSG's .pth file")
    convert.add_argument("--out", type=Path, required=True, help="the model, a .safetensors file")
    convert.add_argument(
        "--vocabulary",
        type=Path,
        metavar="FILE",
        help="class names as JSON or YAML, or an annotation file (default: PSG's)",
    )
    convert.set_defaults(run=_convert)


def _convert(args: argparse.Namespace) -> Outcome:
    """Read a VCTree, MOTIFS, GPSNet or IMP checkpoint of OpenPSG, strictly, executing nothing."""
    from haystack.models.checkpoints.openpsg import load_openpsg
    from haystack.models.relation.files import save_relation_model
    from haystack.vocabulary import Vocabulary
    from haystack.weights import resolve

    if args.out.suffix != ".safetensors":
        raise InputError("expected a name that ends in .safetensors", path=args.out)
    vocabulary = None if args.vocabulary is None else Vocabulary.from_file(args.vocabulary)
    model = load_openpsg(resolve(args.checkpoint, "CHECKPOINT"), vocabulary)
    save_relation_model(model.network, args.out)
    config = model.network.config
    parts = Counter(name.split(".")[0] for name in model.set_aside)
    aside = ", ".join(f"{part} {count}" for part, count in parts.items())
    tensors = len(model.network.state_dict())
    text = (
        f"converted {config.head} on {config.trunk}, {tensors} tensors; set aside what only the "
        f"detector needs ({aside}); wrote {args.out}"
    )
    data = {"out": args.out, "tensors": tensors, "set_aside": parts, "config": asdict(config)}
    return Outcome(text, data)
