"""Runs the services of compose.yaml together and takes an annotator through them.

    compose_test.py docker FOLDER IMAGE
    compose_test.py buildah FOLDER IMAGE --declared compose.json --database IMAGE

Called by image_test.sh. FOLDER holds a campaign (campaign/) and its images (images/); IMAGE is the
annotation service's. An annotator logs in and answers; the database, then the service, is killed
with SIGKILL and started again; all is taken down and brought up again; no answer may be missing,
on the page, in an export, or in a backup.

With Docker, `docker compose` does it. Buildah runs processes alone, so that this script does what
compose.yaml declares: environment, secrets, volumes, users, commands, names of services, order and
health checks. It must be called in a network of its own (`unshare --net`, with `lo` up), because
the services listen on all its addresses. What it cannot show is in `SHOWN_BY_DOCKER_ALONE`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import HTTPCookieProcessor, Request, build_opener

COMPOSE = Path(__file__).with_name("compose.yaml")
SHOWN_BY_DOCKER_ALONE = frozenset(
    {"build", "cap_drop", "image", "ports", "read_only", "restart", "security_opt", "shm_size"}
)
APPLIED = frozenset(
    {"command", "depends_on", "entrypoint", "environment", "healthcheck", "networks", "secrets"}
    | {"tmpfs", "user", "volumes"}
)
_PROJECT = "haystack-compose-test"  # whoever annotates on this machine keeps their containers
_STOP_SECONDS = 30


def documented_commands(compose: str) -> dict[str, list[str]]:
    """The commands that the comment of compose.yaml tells people.

    Args:
        compose: text of the file.

    Returns:
        Verb -> words after `docker compose -f docker/compose.yaml VERB`, in the order told.
    """
    comment = "\n".join(re.findall(r"^#(.*)$", compose, re.MULTILINE))
    joined = re.sub(r"\\\n", " ", comment)
    lines = re.findall(r"docker compose -f docker/compose\.yaml (\w+)(.*)", joined)
    return {verb: shlex.split(rest, comments=True) for verb, rest in lines}


def interpolated(text: str, variables: dict[str, str]) -> str:
    """A value of compose.yaml as compose reads it.

    Args:
        text: with ``$$``, ``${NAME}``, ``${NAME:-default}`` and ``${NAME:?what is missing}``.
        variables: what the names stand for; an empty one counts as none.

    Raises:
        SystemExit: a variable that must be set is not.
    """

    def value(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        if match[1] is None:
            sys.exit(f"compose.yaml: {text!r} has a form of variable that this test does not read")
        found = variables.get(match[1], "")
        if not found and match[2] == ":?":
            sys.exit(f"compose.yaml asks for {match[1]}: {match[3]}")
        return found or match[3] or ""

    return re.sub(r"\$\$|\$(?:\{(\w+)(?:(:-|:\?)([^}]*))?\})?", value, text)


def filled(value: Any, variables: dict[str, str]) -> Any:
    """A part of compose.yaml with the variables in all its texts filled in."""
    if isinstance(value, str):
        return interpolated(value, variables)
    if isinstance(value, list):
        return [filled(item, variables) for item in value]
    if isinstance(value, dict):
        return {key: filled(item, variables) for key, item in value.items()}
    return value


def seconds(duration: str | int) -> float:
    """How long `5s` or `1m30s` (compose.yaml), or nanoseconds (an image), are."""
    if isinstance(duration, int):
        return duration / 1e9
    units = {"h": 3600.0, "m": 60.0, "s": 1.0}
    if not re.fullmatch(r"(\d+[hms])+", duration):
        sys.exit(f"expected a duration like 5s or 1m30s, got {duration!r}")
    return sum(int(n) * units[unit] for n, unit in re.findall(r"(\d+)([hms])", duration))


class Docker:
    """The services under Docker's compose.

    Args:
        folder: for the password and the lines that set this test apart from other projects.
        image: the annotation service's.
        variables: what compose.yaml is told.
    """

    def __init__(self, folder: Path, image: str, variables: dict[str, str]) -> None:
        apart = {
            "services": {"annotate": {"image": image}},
            "secrets": {"database_password": {"file": str(password_file(folder))}},
        }
        override = folder / "compose-override.json"
        override.write_text(json.dumps(apart), encoding="utf-8")
        files = ("-f", str(COMPOSE), "-f", str(override))
        self._command = ("docker", "compose", "-p", _PROJECT, *files)
        self._environment = os.environ | variables

    def up(self) -> None:
        """Start what does not run, and wait until it is healthy."""
        self.run("up", "--no-build", "--detach", "--wait")

    def kill(self, service: str) -> None:
        """End a service at once, as a crash does."""
        self.run("kill", "--signal", "KILL", service)

    def down(self) -> None:
        """Stop the services; the answers stay."""
        self.run("down")

    def show(self) -> None:
        """Print what the services said."""
        subprocess.run((*self._command, "logs"), env=self._environment, check=False)

    def close(self) -> None:
        """Take everything away."""
        self.run("down", "--volumes")

    def run(self, *words: str) -> str:
        """A verb of `docker compose` with its words: what it prints."""
        done = subprocess.run(
            (*self._command, *words), env=self._environment, stdout=subprocess.PIPE, text=True
        )
        if done.returncode:
            sys.exit(f"FAILED: docker compose {shlex.join(words)}: exit code {done.returncode}")
        return done.stdout


class Buildah:
    """The services as buildah runs them, in this process's network.

    Args:
        folder: for the volumes, the password and what the services say.
        images: service -> image.
        declared: compose.yaml.
        variables: what compose.yaml is told.
    """

    def __init__(
        self,
        folder: Path,
        images: dict[str, str],
        declared: dict[str, Any],
        variables: dict[str, str],
    ) -> None:
        self._folder = folder
        shutil.rmtree(
            folder / "volumes", ignore_errors=True
        )  # of an earlier run, with its password
        for log in folder.glob("*.compose.log"):
            log.unlink()
        self._password = password_file(folder)
        self._declared = filled(declared, variables)
        self._services: dict[str, dict[str, Any]] = self._declared["services"]
        self._images = images
        self._containers: dict[str, str] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        for name, service in self._services.items():
            if unknown := service.keys() - APPLIED - SHOWN_BY_DOCKER_ALONE:
                sys.exit(f"compose.yaml, {name}: this test does not know {sorted(unknown)}")

    def up(self) -> None:
        """Start what does not run, in the order that is declared, and wait until it is healthy."""
        for name in self._services:
            self._start(name)
        for name in self._services:
            self._wait(name)

    def run(self, *words: str) -> str:
        """What `docker compose run` or `exec` print."""
        verb, *rest = words
        while rest[0].startswith("-"):  # --rm, -T
            del rest[0]
        name, *command = rest
        if verb == "exec":
            return self._in(self._containers[name], name, command, check=True).stdout
        self._start_dependencies(name)
        container = self._container(name)
        entrypoint, _ = self._words(name)
        try:
            return self._in(container, name, [*entrypoint, *command], check=True).stdout
        finally:
            buildah("rm", container)

    def kill(self, service: str) -> None:
        """End a service at once, as a crash does: all its processes, not buildah."""
        process = self._processes.pop(service)
        while left := [pid for pid in descendants(process.pid) if not is_buildah(pid)]:
            for pid in left:
                send(pid, signal.SIGKILL)
            time.sleep(0.05)
        process.wait()
        buildah("rm", self._containers.pop(service))

    def down(self) -> None:
        """Stop the services, the last one first; the answers stay."""
        for name in reversed(list(self._processes)):
            process = self._processes.pop(name)
            first, *_ = [pid for pid in descendants(process.pid) if not is_buildah(pid)]
            send(first, signal.SIGTERM)
            if code := process.wait(_STOP_SECONDS):
                sys.exit(f"FAILED: {name} ends with exit code {code} when it is stopped")
            buildah("rm", self._containers.pop(name))

    def show(self) -> None:
        """Print what the services said."""
        for log in sorted(self._folder.glob("*.compose.log")):
            print(f"-- {log.name}\n{log.read_text(encoding='utf-8')}", file=sys.stderr)

    def close(self) -> None:
        """End what runs."""
        for name in list(self._processes):
            self.kill(name)

    def _start(self, name: str) -> None:
        if name in self._processes:
            if self._processes[name].poll() is None:
                return
            sys.exit(f"FAILED: {name} ended with exit code {self._processes[name].returncode}")
        self._start_dependencies(name)
        entrypoint, command = self._words(name)
        self._containers[name] = container = self._container(name)
        with (self._folder / f"{name}.compose.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                self._run_words(container, name, [*entrypoint, *command]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _start_dependencies(self, name: str) -> None:
        for other, how in self._services[name].get("depends_on", {}).items():
            self._start(other)
            if how["condition"] == "service_healthy":
                self._wait(other)

    def _wait(self, name: str) -> None:
        check = self._services[name].get("healthcheck")
        if check is None:
            check = {k.lower(): v for k, v in self._of_image(name, "Healthcheck").items()}
            check["start_period"] = check.pop("startperiod")
        kind, *words = check["test"]
        if kind != "CMD":
            sys.exit(f"expected a health check of {name} that is a CMD, got {kind}")
        pause = seconds(check["interval"])
        began = time.monotonic()
        failures = 0
        while failures < check["retries"]:
            if self._processes[name].poll() is not None:
                sys.exit(f"FAILED: {name} ended with exit code {self._processes[name].returncode}")
            try:
                done = self._in(
                    self._containers[name], name, words, timeout=seconds(check["timeout"]) + 5
                )
                if done.returncode == 0:
                    return
            except subprocess.TimeoutExpired:
                pass
            failures += time.monotonic() - began > seconds(check.get("start_period", "0s"))
            time.sleep(pause)
        sys.exit(f"FAILED: {name} is unhealthy after {time.monotonic() - began:.0f} seconds")

    def _words(self, name: str) -> tuple[list[str], list[str]]:
        """Entrypoint and command; an entrypoint in compose.yaml discards the image's command."""
        service = self._services[name]
        entrypoint = service.get("entrypoint")
        command = service.get("command", None if entrypoint is None else [])
        return (
            list(self._of_image(name, "Entrypoint") if entrypoint is None else entrypoint),
            list(self._of_image(name, "Cmd") if command is None else command),
        )

    def _of_image(self, name: str, key: str) -> Any:
        found = json.loads(buildah("inspect", "--type", "image", self._images[name]))
        return found["Docker"]["config"].get(key) or []

    def _container(self, name: str) -> str:
        networks = set(self._services[name]["networks"])
        hosts = [
            f"--add-host={other}:127.0.0.1"
            for other, service in self._services.items()
            if networks & set(service["networks"])
        ]
        return buildah("from", "--pull=never", *hosts, self._images[name]).strip()

    def _run_words(self, container: str, name: str, words: list[str]) -> tuple[str, ...]:
        service = self._services[name]
        options = [f"--env={k}={v}" for k, v in service.get("environment", {}).items()]
        options += [f"--mount=type=tmpfs,destination={path}" for path in service.get("tmpfs", ())]
        for volume in service["volumes"]:
            source, _, rest = volume.partition(":")
            if source in self._declared["volumes"]:
                source = str(self._folder / "volumes" / source)
                Path(source).mkdir(parents=True, exist_ok=True)
            options.append(f"--volume={source}:{rest}")
        for secret in service.get("secrets", ()):
            options.append(f"--volume={self._password}:/run/secrets/{secret}:ro")
        if "user" in service:
            options.append(f"--user={service['user']}")
        return _buildah_words("run", *options, container, "--", *words)

    def _in(
        self,
        container: str,
        name: str,
        words: list[str],
        *,
        check: bool = False,
        timeout: float = 120,
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self._run_words(container, name, words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        if check and done.returncode:
            sys.exit(f"FAILED: {name}: {shlex.join(words)}: {done.stderr}")
        return done


def _buildah_words(*words: str) -> tuple[str, ...]:
    """image_test.sh exports the function that knows where the layers are."""
    return ("bash", "-c", 'buildah "$@"', "-", *words)


def buildah(*words: str) -> str:
    """Run buildah; gives what it prints."""
    return subprocess.run(
        _buildah_words(*words), check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def descendants(pid: int) -> list[int]:
    """The processes that a process started, and those that they started, parents first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                after_name = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            if after_name[0] != "Z":
                children.setdefault(int(after_name[1]), []).append(int(entry.name))
    found = list(children.get(pid, []))
    for child in found:
        found += children.get(child, [])
    return found


def is_buildah(pid: int) -> bool:
    """Whether a process is of the engine rather than of what it runs."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"buildah")
    except OSError:  # it has ended
        return True


def send(pid: int, number: int) -> None:
    """A signal to a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def password_file(folder: Path) -> Path:
    """A new password, readable by the services' users, as openssl would write it."""
    path = folder / "database_password"
    path.write_text(secrets.token_hex(24) + "\n", encoding="ascii")
    path.chmod(0o644)
    return path


class Person:
    """A browser's part: follows a link to log in, and keeps the cookie.

    Args:
        link: that the person got.
    """

    def __init__(self, link: str) -> None:
        self._url = link.partition("/login#")[0]
        self._open = build_opener(HTTPCookieProcessor(CookieJar())).open
        self.post("/api/login", token=link.partition("#token=")[2])

    def get(self, path: str) -> Any:
        """What the service says at a path: its JSON, or bytes."""
        return self._answer(Request(self._url + path))

    def post(self, path: str, **content: Any) -> Any:
        """What it says to a message."""
        body = json.dumps(content).encode()
        headers = {"Content-Type": "application/json", "Origin": self._url}
        return self._answer(Request(self._url + path, body, headers))

    def answer(self, verdict: str) -> str:
        """Answer the next question, having looked at its picture; gives the proposal's id."""
        rows = self.get("/api/progress")["predicates"]
        predicate = next(row["predicate"] for row in rows if row["open"])
        question = self.get(f"/api/next?predicate={predicate}")["questions"][0]
        for picture in ("image_url", "overlay_url"):
            if len(self.get(question[picture])) < 100:
                sys.exit(f"FAILED: no picture at {question[picture]}")
        key = secrets.token_hex(16)
        self.post("/api/answer", key=key, proposal_id=question["id"], verdict=verdict)
        return str(question["id"])

    def given(self, verdict: str) -> int:
        """How many of this person's answers the service knows."""
        return sum(row[verdict] for row in self.get("/api/progress")["predicates"])

    def _answer(self, request: Request) -> Any:
        try:
            with self._open(request, timeout=30) as response:
                body = response.read()
        except URLError as error:
            sys.exit(f"FAILED: {request.get_method()} {request.full_url}: {error}")
        is_json = response.headers.get_content_type() == "application/json"
        return json.loads(body) if is_json else body


def expect(what: str, expected: Any, got: Any) -> None:
    """End unless the two are equal."""
    if expected != got:
        sys.exit(f"FAILED: {what}: expected {expected}, got {got}")
    print(f"{what}: {got}", file=sys.stderr)


def try_out(engine: Docker | Buildah, folder: Path) -> None:
    """The story of a team; see the top of this file."""
    told = documented_commands(COMPOSE.read_text(encoding="utf-8"))
    links = engine.run("run", *told["run"])
    engine.up()
    person = Person(re.findall(r"http\S+#token=\S+", links)[0])
    answers = [person.answer("correct")]
    expect("answers before any crash", 1, person.given("correct"))

    engine.kill("database")
    engine.up()
    answers.append(person.answer("correct"))
    expect("answers after the database was killed", 2, person.given("correct"))

    engine.kill("annotate")
    engine.up()
    expect("answers after the service was killed", 2, person.given("correct"))

    backup = engine.run("exec", *told["exec"])
    events = backup.partition("COPY public.events ")[2].partition("\n\\.")[0]
    expect("answers in a backup", 2, sum(f"{a}\t" in events for a in answers))
    engine.down()
    engine.up()
    expect("answers after all was taken down", 2, person.given("correct"))
    database = told["run"][told["run"].index("--database") + 1]
    engine.run("run", "--rm", "annotate", "export", "/work", "--events", "--database", database)
    lines = (folder / "team" / "export" / "events.jsonl").read_text(encoding="utf-8").splitlines()
    said = [row for row in map(json.loads, lines) if row["record"] == "event"]
    expect("answers in an export", answers, [row["proposal"] for row in said])
    engine.down()


def main() -> None:
    """Read the command line, and try the services out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("engine", choices=("docker", "buildah"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("image")
    parser.add_argument("--declared", type=Path, metavar="JSON", help="compose.yaml as JSON")
    parser.add_argument("--database", metavar="IMAGE", help="what stands in for PostgreSQL's image")
    args = parser.parse_args()
    folder = args.folder.resolve()
    owner = folder.stat()
    workspace = folder / "team"
    shutil.rmtree(workspace, ignore_errors=True)
    shutil.copytree(folder / "campaign", workspace)
    for path in (workspace, *workspace.rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid)
    variables = {
        "HAYSTACK_WORKSPACE": str(workspace),
        "HAYSTACK_IMAGES": str(folder / "images"),
        "HAYSTACK_USER": f"{owner.st_uid}:{owner.st_gid}",
    }
    engine: Docker | Buildah
    if args.engine == "docker":
        engine = Docker(folder, args.image, variables)
    else:
        images = {"annotate": args.image, "database": args.database}
        declared = json.loads(args.declared.read_text(encoding="utf-8"))
        engine = Buildah(folder, images, declared, variables)
    try:
        try_out(engine, folder)
    except BaseException:
        engine.show()
        raise
    finally:
        engine.close()


if __name__ == "__main__":
    main()
