"""The parser, the error messages, and the way from a verb's name to its code."""

from __future__ import annotations

import argparse
import difflib
import errno
import importlib
import io
import json
import logging
import math
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NoReturn

from haystack import __version__
from haystack.cli.outcome import BAD_INPUT, FAILURE, Outcome
from haystack.errors import HaystackError

# Modules that declare verbs; each has ``add_verbs(verbs)``. They import nothing heavy.
_MODULES = (
    *("demo", "stages", "status", "annotate", "annotators", "campaign", "annotations", "imports"),
    *("yields", "models", "bench", "report", "predict", "checkpoints", "weights", "doctor"),
)

# No fault of the program: a full disk, a folder that only others may write, a dying one.
_REFUSED = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO}
)


class _Parser(argparse.ArgumentParser):
    """Usage errors as one sentence with exit code 2, and the way to the help."""

    def error(self, message: str) -> NoReturn:
        wrong = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        if wrong is not None:
            known = [name.strip("' ") for name in wrong[2].split(",")]
            near = difflib.get_close_matches(wrong[1], known, n=2)
            hint = f"nearest: {', '.join(near)}" if near else f"known: {', '.join(known)}"
            message = f"{message[: wrong.start()]}unknown {wrong[1]!r}; {hint}"
        message = f"{message}; see {self.prog} --help"
        if "--json" in sys.argv:
            _print_json({"error": message, "exit_code": BAD_INPUT})
        self.exit(BAD_INPUT, f"{self.prog}: {message}\n")


def build_parser() -> argparse.ArgumentParser:
    """The parser of ``haystack`` with all its verbs."""
    parser = _Parser(
        prog="haystack",
        description="Find rare predicates in unlabelled images, and measure scene-graph models "
        "honestly.",
    )
    parser.add_argument("--version", action="version", version=f"haystack {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=_Parser)
    for module in _MODULES:
        importlib.import_module(f"haystack.cli.{module}").add_verbs(verbs)
    for verb in verbs.choices.values():
        verb.add_argument("--json", action="store_true", help="one JSON object on stdout")
        verb.add_argument("--debug", action="store_true", help="show the traceback of a failure")
    return parser


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse a command line; ``key=value`` settings may stand before and after options."""
    parser = build_parser()
    args, rest = parser.parse_known_args(argv)
    # argparse fills a list of positionals once, with those before the first option.
    takes_settings, takes_name = hasattr(args, "settings"), hasattr(args, "takes_name")
    unknown = [
        word
        for word in rest
        if not takes_settings or word[0] == "-" or not ("=" in word or takes_name)
    ]
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if rest:
        args.settings = [*args.settings, *rest]
    return args


class _AboveBars(logging.StreamHandler):  # type: ignore[type-arg]  # Python 3.10 takes none
    """Messages get a line of their own above a progress bar, which stays the last line."""

    def emit(self, record: logging.LogRecord) -> None:
        bars = getattr(sys.modules.get("tqdm"), "tqdm", None)  # who shows one has imported it
        with nullcontext() if bars is None else bars.external_write_mode(file=self.stream):
            super().emit(record)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names that the terminal cannot spell
            stream.reconfigure(errors="backslashreplace")
    args = parse(argv)
    logging.basicConfig(format="%(message)s", handlers=[_AboveBars(sys.stderr)], force=True)
    logging.getLogger("haystack").setLevel(logging.INFO)
    with _terminable():
        return _run(args)


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM is heard as Ctrl-C is: what is half done is removed, and a sentence says so."""

    def stop(number: int, frame: object) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)  # a second one would cut off the cleaning up
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _run(args: argparse.Namespace) -> int:
    try:
        outcome: Outcome = args.run(args)
    except HaystackError as error:
        if args.debug:
            traceback.print_exc()
        return _fail(args, str(error), error.exit_code)
    except KeyboardInterrupt:
        return _fail(args, "interrupted; what was finished is kept, run it again to go on", FAILURE)
    except OSError as error:
        if args.debug:
            raise
        return _fail(args, _sentence_of(error), FAILURE)
    except Exception as error:
        if args.debug:
            raise
        kind = type(error).__name__
        return _fail(args, f"unexpected {kind}: {error} (run again with --debug)", FAILURE)
    if outcome.text:
        print(outcome.text, file=sys.stderr)
    if args.json:
        _print_json(jsonable(outcome.data))
    return outcome.exit_code


def _sentence_of(error: OSError) -> str:
    """What the system refused, and where."""
    if error.errno not in _REFUSED:
        return f"unexpected {type(error).__name__}: {error} (run again with --debug)"
    where = f"{error.filename}: " if isinstance(error.filename, str) else ""
    return f"{where}{error.strerror}; what was finished is kept: mend that, and run it again"


def _print_json(content: Any) -> None:
    try:
        print(json.dumps(content, allow_nan=False), flush=True)
    except BrokenPipeError:  # the reader has seen enough; Python must not complain at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(args: argparse.Namespace, message: str, exit_code: int) -> int:
    print(f"haystack {args.verb}: {message}", file=sys.stderr)
    if args.json:
        _print_json({"error": message, "exit_code": exit_code})
    return exit_code


def jsonable(value: Any) -> Any:
    """Plain JSON types; NaN and infinities become null, paths become text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict) or hasattr(value, "items"):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):  # NumPy scalars and arrays
        return jsonable(value.tolist())
    return value
