"""Who computes a shard: claims that hold between processes that share nothing but a folder.

A claim is a file made with ``O_EXCL``, which one of several processes gets, also on NFS (version 3
and later) and on the usual cluster file systems; ``flock`` need not work there. It names its owner,
who renews its modification time. It is given up in three ways:

- its owner removes it;
- the owner ran on this machine, and the process is gone;
- the owner ran elsewhere, and one process has watched the claim for ``lease`` seconds of its own
  clock without seeing it renewed. Clocks of different machines are never compared.

A dead owner's claim is first renamed, which again only one process gets, then removed. An owner
that was thought dead and is not (suspended, cut off) finds out before it publishes, and drops its
work.
Claims only keep work from being done twice: what is done, the manifests say.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path

from haystack import files
from haystack.executors.temporaries import is_running

FOLDER = ".claims"
LEASE_SECONDS = 120.0
_RENEWALS_A_LEASE = 8


@dataclass(frozen=True)
class RunIdentity:
    """Which processes belong together.

    Args:
        run: one launch by a user, on all its machines; deaths on a shard are counted within it.
        group: one coordinator and its workers.
    """

    run: str
    group: str

    @classmethod
    def new(cls, run: str | None = None) -> RunIdentity:
        """An identity of this process's own, in the launch ``run`` if it is part of one."""
        group = secrets.token_hex(8)
        return cls(run or group, group)


@dataclass(frozen=True)
class Claim:
    """What a claim's file says.

    Args:
        token: of this claim alone.
        run, group: see ``RunIdentity``.
        host, machine, process, born: the owner; ``born`` tells processes of one number apart.
        lost: owners before this one that died on the shard, in the same run.
        failed: nobody in this run should try again.
    """

    token: str
    run: str
    group: str
    host: str
    machine: str
    process: int
    born: str
    lost: int = 0
    failed: bool = False

    def __str__(self) -> str:
        return f"process {self.process} on {self.host}"


class Holder(Enum):
    """What can be said of a shard's claim."""

    NOBODY = "nobody"
    ALIVE = "alive"
    DEAD = "dead"
    UNSURE = "unsure"  # watched for less than a lease
    FAILED = "failed"


class Claims:
    """The claims of one stage, as one process sees and holds them.

    Args:
        root: the workspace.
        stage: its name.
        identity: of this run.
        lease: seconds after which a claim that nobody renews counts as dead.
    """

    def __init__(
        self, root: Path, stage: str, identity: RunIdentity, *, lease: float = LEASE_SECONDS
    ) -> None:
        self._folder = root / stage / FOLDER
        self._folder.mkdir(parents=True, exist_ok=True)
        self._lease = lease
        self._watched: dict[str, tuple[str, int, float]] = {}
        self._held: dict[str, Claim] = {}
        self._closed = threading.Event()
        self._renewing: threading.Thread | None = None
        self.identity = identity

    def take(self, shard: str, *, lost: int = 0) -> Claim | None:
        """Claim a shard; None where someone has it, alive or dead."""
        claim = self._own(lost)
        try:
            self._create(shard, claim)
        except FileExistsError:
            return None
        self._held[shard] = claim
        if self._renewing is None:
            self._renewing = threading.Thread(target=self._renew, name="claims", daemon=True)
            self._renewing.start()
        return claim

    def holds(self, shard: str, claim: Claim) -> bool:
        """Whether the shard is still this process's: ask before publishing."""
        return self._read(shard)[0] == claim

    def release(self, shard: str, claim: Claim) -> None:
        """Give a shard back."""
        self._held.pop(shard, None)
        if self.holds(shard, claim):
            self._place(shard).unlink(missing_ok=True)

    def look(self, shard: str) -> tuple[Holder, Claim | None]:
        """Who holds a shard, as far as can be said now; look again while it says ``UNSURE``."""
        claim, renewed = self._read(shard)
        if renewed is None:
            return Holder.NOBODY, None
        if claim is not None and claim.failed:
            return (Holder.FAILED if claim.run == self.identity.run else Holder.DEAD), claim
        if claim is not None and claim.machine == files.machine():
            alive = is_running(claim.process) and _born(claim.process) == claim.born
            return (Holder.ALIVE if alive else Holder.DEAD), claim
        token = "" if claim is None else claim.token
        now = time.monotonic()
        known = self._watched.get(shard)
        if known is None or known[0] != token:
            self._watched[shard] = (token, renewed, now)
            return Holder.UNSURE, claim
        if known[1] != renewed:
            return Holder.ALIVE, claim
        return (Holder.DEAD if now - known[2] > self._lease else Holder.UNSURE), claim

    def clear(self, shard: str, dead: Claim | None) -> bool:
        """Remove a claim that ``look`` called dead; False where someone else was faster."""
        place, aside = self._place(shard), self._folder / f".gone-{secrets.token_hex(8)}"
        try:
            os.rename(place, aside)
        except FileNotFoundError:
            return False
        moved = _parse(aside.read_text(encoding="utf-8"))
        if moved != dead:  # between the look and the rename another process took the shard
            with suppress(OSError):  # taken once more: the one in between will find out
                os.link(aside, place)
        aside.unlink(missing_ok=True)
        return moved == dead

    def clear_own(self, shard: str) -> None:
        """Remove the claim of a worker of this group that is known to be dead."""
        claim, _ = self._read(shard)
        if claim is not None and claim.group == self.identity.group:
            self.clear(shard, claim)

    def losses(self, dead: Claim | None) -> int:
        """How many owners in this run died on a shard, ``dead`` included."""
        same = dead is not None and dead.run == self.identity.run
        return dead.lost + 1 if dead is not None and same else 0

    def give_up(self, shard: str) -> None:
        """Tell the other processes of this run that the shard kills whoever tries it."""
        with suppress(FileExistsError):
            self._create(shard, replace(self._own(0), failed=True))

    def close(self) -> None:
        """Stop renewing."""
        self._closed.set()

    def _own(self, lost: int) -> Claim:
        process = os.getpid()
        return Claim(
            token=secrets.token_hex(8),
            run=self.identity.run,
            group=self.identity.group,
            host=platform.node(),
            machine=files.machine(),
            process=process,
            born=_born(process),
            lost=lost,
        )

    def _place(self, shard: str) -> Path:
        return self._folder / shard

    def _create(self, shard: str, claim: Claim) -> None:
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
        descriptor = os.open(self._place(shard), flags, 0o644)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                json.dump(asdict(claim), stream)
        except OSError:  # no space: a claim of nobody would keep everybody waiting for a lease
            self._place(shard).unlink(missing_ok=True)
            raise

    def _read(self, shard: str) -> tuple[Claim | None, int | None]:
        """The claim, or None where it is not written yet, and when it was renewed."""
        try:
            # NFS asks the server anew when a file is opened; stat() alone may be a minute old.
            with self._place(shard).open(encoding="utf-8") as stream:
                return _parse(stream.read()), os.fstat(stream.fileno()).st_mtime_ns
        except FileNotFoundError:
            return None, None

    def _renew(self) -> None:
        while not self._closed.wait(self._lease / _RENEWALS_A_LEASE):
            for shard in list(self._held):
                try:
                    os.utime(self._place(shard))
                except OSError:  # lost, or the share is away: `holds` will tell
                    continue


def _parse(text: str) -> Claim | None:
    try:
        return Claim(**json.loads(text))
    except (ValueError, TypeError):  # its owner is between creating and writing it, or died there
        return None


def _born(process: int) -> str:
    """When a process of this machine started, in ticks since the boot; "" where unknown."""
    try:
        status = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    fields = status.rpartition(")")[2].split()  # the name before may hold spaces
    return "dead" if fields[0] in "ZX" else fields[19]
