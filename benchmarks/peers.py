"""The peers whose evaluators run beside ours, each in a process and an interpreter of its own."""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Peers:
    """Where the peers are; None for one that is not given.

    Args:
        sgbench: an interpreter that can import SGBench 1.0.0.
        kaihuatang: a checkout of KaihuaTang/Scene-Graph-Benchmark.pytorch.
        openpsg: a checkout of Jingkang50/OpenPSG.
        authors: ``calc_metrics.py`` of lorjul/haystack.
        vctree: a checkout of KaihuaTang/VCTree-Scene-Graph-Generation.
        fair_psgg: a checkout of lorjul/fair-psgg.
        maskdino: a checkout of IDEA-Research/MaskDINO.
        python: the interpreter that runs all but the first.
    """

    sgbench: Path | None = None
    kaihuatang: Path | None = None
    openpsg: Path | None = None
    authors: Path | None = None
    vctree: Path | None = None
    fair_psgg: Path | None = None
    maskdino: Path | None = None
    python: Path = Path(sys.executable)

    @classmethod
    def of(cls, options: argparse.Namespace) -> Peers:
        """From the arguments that :func:`add_arguments` adds."""
        return cls(
            options.sgbench_python,
            options.kaihuatang,
            options.openpsg,
            options.authors_script,
            options.vctree,
            options.fair_psgg,
            options.maskdino,
            options.peer_python,
        )

    def run_sgbench(self, inputs: Path, mode: str, repeat: int = 0) -> dict[str, Any] | None:
        """SGBench on a folder of inputs; None without an interpreter for it."""
        if self.sgbench is None:
            return None
        return run_driver("run_sgbench", inputs, f"--mode={mode}", repeat=repeat, by=self.sgbench)

    def run_kaihuatang(
        self, inputs: Path, mode: str, repeat: int = 0, *, four: bool = False
    ) -> dict[str, Any] | None:
        """KaihuaTang's evaluator on scenes; ``four``: R, ngR, mR and ng-mR only."""
        if self.kaihuatang is None:
            return None
        extra = [f"--mode={mode}", f"--checkout={self.kaihuatang}", *(["--four"] if four else [])]
        return run_driver("run_kaihuatang", inputs, *extra, repeat=repeat, by=self.python)

    def run_openpsg(self, inputs: Path, mode: str, *, masks: bool) -> dict[str, Any] | None:
        """OpenPSG's evaluator on scenes, with boxes or with masks."""
        if self.openpsg is None:
            return None
        extra = [f"--mode={mode}", f"--checkout={self.openpsg}", *(["--masks"] if masks else [])]
        return run_driver("run_openpsg", inputs, *extra, repeat=0, by=self.python)

    def run_openpsg_head(self, inputs: Path, repeat: int) -> dict[str, Any] | None:
        """OpenPSG's VCTree head on a saved ``heads.Case``."""
        if self.openpsg is None:
            return None
        extra = f"--checkout={self.openpsg}"
        return run_driver("run_openpsg_head", inputs, extra, repeat=repeat, by=self.python)

    def run_authors(self, inputs: Path, repeat: int = 0) -> dict[str, Any] | None:
        """The Haystack authors' script on a folder with its two files."""
        if self.authors is None:
            return None
        extra = f"--checkout={self.authors}"
        return run_driver("run_authors", inputs, extra, repeat=repeat, by=self.python)

    def run_vctree(self, inputs: Path, mode: str) -> dict[str, Any] | None:
        """The evaluator of VCTree's first code on scenes with 50 predicates."""
        if self.vctree is None:
            return None
        extra = [f"--mode={mode}", f"--checkout={self.vctree}"]
        return run_driver("run_vctree", inputs, *extra, repeat=0, by=self.python)

    def run_fair_psgg(self, inputs: Path) -> dict[str, Any] | None:
        """The SingleMPO evaluator on a folder with its files."""
        if self.fair_psgg is None:
            return None
        extra = f"--checkout={self.fair_psgg}"
        return run_driver("run_fair_psgg", inputs, extra, repeat=0, by=self.python)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that say where the peers are."""
    group = parser.add_argument_group("peers, each optional")
    group.add_argument(
        "--sgbench-python", type=_existing, help="interpreter with sgbench==1.0.0 (needs numpy<2)"
    )
    group.add_argument(
        "--kaihuatang", type=_existing, help="checkout of KaihuaTang/Scene-Graph-Benchmark.pytorch"
    )
    group.add_argument("--openpsg", type=_existing, help="checkout of Jingkang50/OpenPSG")
    group.add_argument(
        "--authors-script", type=_existing, help="calc_metrics.py of lorjul/haystack"
    )
    group.add_argument(
        "--vctree", type=_existing, help="checkout of KaihuaTang/VCTree-Scene-Graph-Generation"
    )
    group.add_argument("--fair-psgg", type=_existing, help="checkout of lorjul/fair-psgg")
    group.add_argument("--maskdino", type=_existing, help="checkout of IDEA-Research/MaskDINO")
    group.add_argument(
        "--peer-python",
        type=_existing,
        default=Path(sys.executable),
        help="interpreter for all but SGBench (torch, torchvision, scipy, tqdm, scikit-learn)",
    )


def run_driver(
    name: str, inputs: Path, *extra: str, repeat: int, by: Path = Path(sys.executable)
) -> dict[str, Any]:
    """Run a driver in a process of one thread and read its answer."""
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "answer.json"
        command = [str(by), str(_HERE / "drivers" / f"{name}.py")]
        command += [f"--inputs={inputs}", f"--output={output}", f"--repeat={repeat}", *extra]
        done = subprocess.run(command, env=_environment(), capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{name} failed under {by}:\n{done.stderr[-3000:]}")
        return json.loads(output.read_text())


def largest_difference(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, float]:
    """By name, how far values lie apart; infinite where only one side defines a value.

    Vectors over predicates are compared where ours is defined: peers fill the rest with 0.
    """
    differences = {}
    for name, their in theirs.items():
        if name not in ours:
            continue
        if isinstance(their, list):
            pairs = list(zip(ours[name], their, strict=True))
            apart = [abs(a - b) for a, b in pairs if not math.isnan(a)]
            wrong = any(b != 0 and not math.isnan(b) for a, b in pairs if math.isnan(a))
            differences[name] = math.inf if wrong else max(apart, default=0.0)
            continue
        a, b = (math.nan if x is None else float(x) for x in (ours[name], their))
        if math.isnan(a) or math.isnan(b):
            differences[name] = 0.0 if math.isnan(a) and math.isnan(b) else math.inf
        else:
            differences[name] = abs(a - b)
    return differences


def _environment() -> dict[str, str]:
    paths = [str(_HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    threads = dict.fromkeys(_ONE_THREAD, "1")
    return {**os.environ, **threads, "PYTHONPATH": os.pathsep.join(paths)}


def _existing(text: str) -> Path:
    # An interpreter of a virtual environment must not be resolved: its link says which one.
    path = Path(text).expanduser().absolute()
    if not path.exists():
        raise argparse.ArgumentTypeError(f"{path} does not exist")
    return path
