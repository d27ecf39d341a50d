"""``haystack train`` in several processes, as ``torchrun`` starts them, without its starting time.

PyTorch is imported once; processes are forked from this one, which never trains itself. Each line
of the input is a JSON object: ``count``, ``argv``, ``shared`` (environment variables), ``output``
(a folder for what the processes print) and ``dies`` (the step after which all of them end with exit
code 9, or null). Each line of the output is the list of their exit codes.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path

from haystack.cli import main
from haystack.training import loop, trainer  # noqa: F401  imported before the forks


def work(rank, argv, shared, output, dies):
    os.environ.update(shared, RANK=str(rank), LOCAL_RANK=str(rank))
    for number, name in ((1, "out"), (2, "err")):
        file = os.open(Path(output) / f"{rank}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
    advance = loop.Loop._advance

    def dying(self, loaded):
        if self.step == dies:
            raise SystemExit(9)
        return advance(self, loaded)

    if dies is not None:
        loop.Loop._advance = dying
    return main(argv)


def fork(rank, request):
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        code = work(rank, **request)
    except SystemExit as stop:
        code = stop.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    for line in sys.stdin:
        request = json.loads(line)
        children = [fork(rank, request) for rank in range(request.pop("count"))]
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print(json.dumps(codes), flush=True)
