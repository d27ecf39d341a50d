"""What an image of Haystack promises, read off the files that it is built from."""

import fnmatch
import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from haystack.cli.parser import parse

tomllib = pytest.importorskip("tomllib", reason="Python 3.11, as in the images, reads TOML")

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
DOCKERFILES = sorted(DOCKER.glob("Dockerfile*"))
LOCKS = sorted(DOCKER.glob("*.lock"))
DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def instructions(path):
    """(keyword, arguments) of a Dockerfile, continued lines joined, comments dropped."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line[:1] != "#"]
    for line in re.sub(r"\\\n\s*", " ", "\n".join(lines)).splitlines():
        if line.strip():
            keyword, _, rest = line.strip().partition(" ")
            yield keyword, rest.strip()


def stages(path):
    """Name -> (what it is built from, its instructions), of one Dockerfile."""
    found, name = {}, None
    for keyword, rest in instructions(path):
        if keyword == "FROM":
            source, _, name = rest.partition(" AS ")
            found[name] = (source, [])
        elif name is not None:
            found[name][1].append((keyword, rest))
    return found


def effective(path, target):
    """The instructions of a target, those of the stages that it continues first."""
    source, own = stages(path)[target]
    return [*(effective(path, source) if source in stages(path) else []), *own]


def last(path, target, keyword):
    return [rest for word, rest in effective(path, target) if word == keyword][-1]


TARGETS = [(DOCKER / "Dockerfile", name) for name in ("runtime", "annotate", "test")]
DETECTRON2 = (DOCKER / "Dockerfile.detectron2", "detectron2")


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_what_an_image_is_built_on_has_a_digest(path):
    defaults = dict(
        rest.split("=", 1) for word, rest in instructions(path) if word == "ARG" and "=" in rest
    )
    known = stages(path)
    assert None not in known
    for source, _ in known.values():
        if source in known:
            continue
        variable = re.fullmatch(r"\$\{(\w+)\}", source)
        assert variable, f"{source} can be chosen by no build argument"
        assert DIGEST.search(defaults[variable[1]]) or variable[1] == "HAYSTACK_IMAGE"


@pytest.mark.parametrize(
    ("path", "target"), [*TARGETS, DETECTRON2], ids=lambda value: str(value).split("/")[-1]
)
def test_nobody_is_root(path, target):
    user, group = last(path, target, "USER").split(":")
    assert int(user) > 0
    assert int(group) > 0


@pytest.mark.parametrize(("path", "target"), TARGETS, ids=lambda value: str(value).split("/")[-1])
def test_the_first_process_reaps_its_children(path, target):
    words = json.loads(last(path, target, "ENTRYPOINT"))
    assert words[:2] == ["tini", "--"]
    assert words[2] in {*PROJECT["scripts"], "python"}


def test_the_image_of_the_tests_holds_all_that_its_tests_read_at_the_start(tmp_path):
    own = [rest for word, rest in stages(DOCKER / "Dockerfile")["test"][1] if word == "COPY"]
    for rest in own[1:]:  # the first is the lock file
        *sources, to = rest.split()
        for source in sources:
            place = tmp_path / to / (source if to.endswith("/") else "")
            copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
            copy(ROOT / source, place)
    words = json.loads(last(DOCKER / "Dockerfile", "test", "ENTRYPOINT"))[3:]
    words += [*json.loads(last(DOCKER / "Dockerfile", "test", "CMD")), "--collect-only"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, *words]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:]


def test_every_label_that_names_an_image_is_set():
    (labels,) = [
        rest for word, rest in stages(DOCKER / "Dockerfile")["runtime"][1] if word == "LABEL"
    ]
    names = ("title", "description", "licenses", "source", "revision", "created", "base.name")
    for name in names:
        assert f"org.opencontainers.image.{name}=" in labels


def test_the_annotation_image_checks_its_own_service():
    check = last(DOCKER / "Dockerfile", "annotate", "HEALTHCHECK")
    command = json.loads(last(DOCKER / "Dockerfile", "annotate", "CMD"))
    args = parse(command)
    assert f":{args.port}/healthz" in check
    assert last(DOCKER / "Dockerfile", "annotate", "EXPOSE") == str(args.port)
    assert last(DOCKER / "Dockerfile", "runtime", "HEALTHCHECK") == "NONE"


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_every_file_that_is_copied_exists_and_reaches_the_builder(path):
    copies = [rest for word, rest in instructions(path) if word == "COPY" and "--from" not in rest]
    assert copies
    for rest in copies:
        *sources, _ = [word for word in rest.split() if not word.startswith("--")]
        for source in sources:
            for flavour in ("cpu", "cuda"):
                place = source.replace("${FLAVOUR}", flavour)
                assert (ROOT / place).exists(), place
                assert not is_ignored(place), place


@pytest.mark.parametrize(
    "path",
    [
        ".git/config",
        ".venv/bin/python",
        "annotation.json",
        "data/psg.json",
        "demo-run/report.html",
        "docker/secrets/database_password",
        "docker/compose.yaml",
        "haystack/__pycache__/x.cpython-311.pyc",
        "haystack/.env",
        "runs/model.safetensors",
        "tests/key.pem",
    ],
)
def test_data_runs_and_keys_stay_outside(path):
    assert is_ignored(path)


def test_the_bundled_data_goes_in():
    assert not is_ignored("haystack/data/psg_mini/annotation.json")
    assert not is_ignored("docker/requirements-cpu.lock")


def is_ignored(path):
    """Docker's rule: the last pattern that matches the path or a folder above it decides."""
    ignored = False
    prefixes = ["/".join(path.split("/")[: n + 1]) for n in range(path.count("/") + 1)]
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        pattern = line.removeprefix("!")
        if pattern.startswith("**/"):
            hit = any(fnmatch.fnmatchcase(part, pattern[3:]) for part in path.split("/"))
        else:
            hit = any(
                fnmatch.fnmatchcase(prefix, pattern) and prefix.count("/") == pattern.count("/")
                for prefix in prefixes
            )
        if hit:
            ignored = not line.startswith("!")
    return ignored


@pytest.mark.parametrize("path", [*DOCKERFILES, DOCKER / "compose.yaml"], ids=lambda p: p.name)
def test_no_secret_is_written_into_an_image(path):
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"://[^\s/@]+:[^\s/@]+@", text)
    for word, rest in instructions(path) if path.name.startswith("Dockerfile") else ():
        if word in ("ARG", "ENV"):
            assert not re.search(r"(PASSWORD|TOKEN|SECRET|CREDENTIAL|PIP_CONF|INDEX_URL)", rest)


def locked(path):
    text = path.read_text(encoding="utf-8")
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", text, re.MULTILINE))


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_every_package_is_locked_with_its_checksum(path):
    blocks = re.split(r"^(?=[^\s#])", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    assert blocks
    for block in blocks:
        assert re.match(r"[a-z0-9-]+==[0-9][\w.+!]* \\\n +--hash=sha256:[0-9a-f]{64}", block), block


@pytest.mark.parametrize("flavour", ["cpu", "cuda"])
def test_the_locks_satisfy_what_the_project_asks_for(flavour):
    versions = locked(DOCKER / f"requirements-{flavour}.lock")
    extras = PROJECT["optional-dependencies"]
    names = ("annotate", "postgres", "sweep", "transformers", "gpu" if flavour == "cuda" else "cpu")
    wanted = [*PROJECT["dependencies"], *(row for name in names for row in extras[name])]
    for requirement in map(Requirement, wanted):
        if requirement.name != "haystack-psg":
            version = versions[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(version.partition("+")[0]), requirement
    assert ("faiss-cpu" in versions) != ("faiss-gpu" in versions)
    assert flavour == "cuda" or not [name for name in versions if name.startswith("nvidia")]


def test_a_package_has_one_version_in_all_images():
    cpu, cuda = (locked(DOCKER / f"requirements-{flavour}.lock") for flavour in ("cpu", "cuda"))
    differ = {name for name in cpu.keys() & cuda.keys() if cpu[name] != cuda[name]}
    assert differ == {"torch", "torchvision"}
    for path in LOCKS:
        other = locked(path)
        older = {"setuptools"} if "detectron2" in path.name else set()
        shared = (other.keys() & cuda.keys()) - differ - older
        assert {name: other[name] for name in shared} == {name: cuda[name] for name in shared}


def test_the_test_image_brings_what_the_extra_dev_names():
    dev = {Requirement(row).name for row in PROJECT["optional-dependencies"]["dev"]}
    rows = (DOCKER / "requirements-test.in").read_text(encoding="utf-8").splitlines()
    assert {Requirement(row).name for row in rows if row and row[0] != "#"} <= dev


COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))


def test_the_services_wait_for_the_database_and_are_reached_from_this_machine_alone():
    database, annotate = COMPOSE["services"]["database"], COMPOSE["services"]["annotate"]
    assert DIGEST.search(database["image"])
    assert annotate["depends_on"]["database"]["condition"] == "service_healthy"
    assert database["healthcheck"]["test"][1] == "pg_isready"
    assert "ports" not in database
    assert all(port.startswith("127.0.0.1:") for port in annotate["ports"])
    assert annotate["build"]["target"] in stages(DOCKER / "Dockerfile")


def test_what_the_services_use_is_declared():
    for service in COMPOSE["services"].values():
        assert set(service.get("secrets", ())) <= COMPOSE["secrets"].keys()
        assert set(service["networks"]) <= COMPOSE["networks"].keys()
        named = {v.partition(":")[0] for v in service["volumes"] if not v.startswith("$")}
        assert named <= COMPOSE["volumes"].keys()


def test_the_compose_file_starts_a_command_that_haystack_has():
    annotate = COMPOSE["services"]["annotate"]
    args = parse(annotate["command"])
    assert f"127.0.0.1:8765:{args.port}" in annotate["ports"]
    assert args.database == "postgresql+psycopg://haystack@database/haystack"


def test_what_the_compose_file_tells_people_to_type_can_be_typed():
    told = load("compose_test").documented_commands((DOCKER / "compose.yaml").read_text())
    assert list(told) == [
        "build",
        "run",
        "up",
        "down",
        "exec",
    ]
    assert told["run"][:2] == ["--rm", "annotate"]
    args = parse(told["run"][2:])
    annotate = COMPOSE["services"]["annotate"]
    assert args.database == parse(annotate["command"]).database
    assert args.public_url == "http://localhost:8765"
    assert told["exec"][:3] == ["-T", "database", "pg_dump"]
    user = COMPOSE["services"]["database"]["environment"]["POSTGRES_USER"]
    assert user in told["exec"]


def test_the_test_of_compose_knows_all_that_is_declared():
    test = load("compose_test")
    for service in COMPOSE["services"].values():
        assert service.keys() <= test.APPLIED | test.SHOWN_BY_DOCKER_ALONE
    assert not test.APPLIED & test.SHOWN_BY_DOCKER_ALONE


def test_compose_variables_are_filled_in_as_compose_does():
    test = load("compose_test")
    given = {"A": "a", "EMPTY": ""}
    text = "$$x ${A} ${A:-b}${A:?no} ${EMPTY:-c:d} ${GONE:-} ${GONE}"
    assert test.filled({"k": [text, 1]}, given) == {"k": ["$x a aa c:d  ", 1]}
    with pytest.raises(SystemExit, match="asks for EMPTY: the folder"):
        test.filled(["${EMPTY:?the folder}"], given)
    for unread in ("$A", "${A-b}", "${A"):
        with pytest.raises(SystemExit, match="does not read"):
            test.interpolated(unread, given)
    with pytest.raises(SystemExit, match="HAYSTACK_WORKSPACE"):
        test.filled(COMPOSE, {})


def test_durations_are_those_of_compose_and_of_images():
    seconds = load("compose_test").seconds
    assert [seconds(d) for d in ("5s", "1m30s", "2h", 3_000_000_000)] == [5, 90, 7200, 3]
    with pytest.raises(SystemExit, match="5 seconds"):
        seconds("5 seconds")


def test_a_crash_ends_all_that_a_process_started():
    test = load("compose_test")
    with subprocess.Popen(["sh", "-c", "sh -c 'sleep 60; :' & wait"]) as process:
        try:
            until = time.monotonic() + 10
            while len(found := test.descendants(process.pid)) < 2 and time.monotonic() < until:
                time.sleep(0.01)
            commands = [Path(f"/proc/{pid}/comm").read_text().strip() for pid in found]
            assert commands == ["sh", "sleep"]
            assert not any(map(test.is_buildah, found))
        finally:
            for pid in [*found, process.pid]:
                test.send(pid, signal.SIGKILL)
    assert not test.descendants(process.pid)
    test.send(process.pid, signal.SIGKILL)  # it is gone already


def test_the_password_is_a_file_that_git_does_not_take():
    file = COMPOSE["secrets"]["database_password"]["file"]
    done = subprocess.run(["git", "-C", ROOT, "check-ignore", "-q", f"docker/{file}"], check=False)
    assert done.returncode in (0, 128), "docker/secrets/ is not in .gitignore"  # 128: no checkout


@pytest.mark.parametrize("path", sorted(DOCKER.glob("*.sh")), ids=lambda path: path.name)
def test_the_scripts_are_bash(path):
    subprocess.run(["bash", "-n", path], check=True)
    assert path.stat().st_mode & 0o111


def load(name):
    spec = importlib.util.spec_from_file_location(name, DOCKER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(DOCKER))  # as for a script that Python is given
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(DOCKER))
    return module


def test_an_image_with_other_packages_than_its_lock_is_refused(tmp_path, capsys):
    compare = load("compare_installed")
    lock, installed = tmp_path / "a.lock", tmp_path / "installed.json"
    lock.write_text(
        "kornia-rs==0.2.0 \\\n    --hash=sha256:00\nnumpy==2.4.6 \\\n    --hash=sha256:00\n"
    )
    installed.write_text(
        '{"kornia_rs": "0.2.0", "numpy": "2.4.6", "pip": "24", "haystack-psg": "1"}'
    )
    assert compare.main(lock, installed) == 0
    installed.write_text('{"kornia_rs": "0.2.1", "torch": "2.14.1"}')
    assert compare.main(lock, installed) == 1
    assert capsys.readouterr().err.splitlines()[1:] == [
        "kornia-rs: locked 0.2.0, installed 0.2.1",
        "numpy: locked 2.4.6, installed not at all",
        "torch: locked not at all, installed 2.14.1",
    ]


LOCK = "numpy==2.4.6 \\\n    --hash=sha256:00\n"


@pytest.mark.parametrize(
    ("lock", "installed", "sentence"),
    [
        (None, "{}", "a.lock cannot be read: No such file or directory"),
        ("# nothing\n", "{}", "a.lock locks no package"),
        (b"\xff\xfe", "{}", "a.lock is not a text in UTF-8"),
        (LOCK, None, "installed.json cannot be read: No such file or directory"),
        (LOCK, "", "installed.json is not JSON"),
        (LOCK, '{"numpy": "2.4', "installed.json is not JSON"),
        (LOCK, '["numpy"]', "installed.json is not an object of names and versions"),
        (LOCK, '{"numpy": null}', "installed.json is not an object of names and versions"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(tmp_path, lock, installed, sentence):
    paths = [tmp_path / "a.lock", tmp_path / "installed.json"]
    for path, content in zip(paths, (lock, installed), strict=True):
        if content is not None:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert sentence in only_line(said_by("compare_installed", *paths))


def test_a_comparison_of_one_file_says_what_is_missing(tmp_path):
    assert "usage" in only_line(said_by("compare_installed", tmp_path / "a.lock"))


@pytest.mark.parametrize(
    ("listing", "sentence"),
    [
        (None, "debian.txt cannot be read: No such file or directory"),
        (b"\xff", "debian.txt is not a text in UTF-8"),
        (b"", "is empty"),
        (b"tini 0.19.0-1 amd64\nbash 5.2.15\n", "not 'bash 5.2.15'"),
    ],
)
def test_a_damaged_list_of_debians_packages_is_one_sentence(tmp_path, listing, sentence):
    out = tmp_path / "sbom.json"
    path = tmp_path / "debian.txt"
    if listing is not None:
        path.write_bytes(listing)
    assert sentence in only_line(said_by("sbom", "cuda", out, "--debian", path))
    assert not out.exists()


def test_a_bill_that_cannot_be_made_or_written_is_one_sentence(tmp_path, monkeypatch):
    sbom = load("sbom")
    with pytest.raises(SystemExit, match=r"gone\.lock cannot be read: No such file"):
        sbom.of_lock(tmp_path / "gone.lock")
    lock = tmp_path / "a.lock"
    lock.write_text("", encoding="utf-8")
    with pytest.raises(SystemExit, match="locks no package"):
        sbom.of_lock(lock)
    with pytest.raises(SystemExit, match="BASE_IMAGE"):
        sbom.base_image("FROM debian\n")
    lock.write_text(LOCK, encoding="utf-8")
    monkeypatch.setattr(sbom.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="cyclonedx-bom is not installed"):
        sbom.of_lock(lock)
    monkeypatch.setattr(sbom, "of_lock", lambda lock: {"components": []})
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit, match=r"sbom\.json cannot be written: .*/file: File exists"):
        sbom.main(["cuda", str(tmp_path / "file" / "sbom.json")])


def said_by(name, *arguments):
    """What a script says on the terminal where it must refuse."""
    done = subprocess.run(
        [sys.executable, DOCKER / f"{name}.py", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert not done.stdout
    return done.stderr


def only_line(text):
    assert text.count("\n") == 1, text
    return text


def test_the_bill_of_materials_names_the_base_and_debians_packages():
    sbom = load("sbom")
    base = sbom.base_image((DOCKER / "Dockerfile").read_text(encoding="utf-8"))
    assert base["name"] == "docker.io/library/python:3.11-slim-bookworm"
    assert base["version"] == f"sha256:{base['hashes'][0]['content']}"
    found = sbom.debian_packages("tini 0.19.0-1 amd64\nbash 5.2.15-2+b7 amd64\n")
    assert [row["purl"] for row in found] == [
        "pkg:deb/debian/bash@5.2.15-2%2Bb7?arch=amd64",
        "pkg:deb/debian/tini@0.19.0-1?arch=amd64",
    ]


def test_the_readme_runs_what_the_image_takes():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"\\\n\s*", "", "".join(re.findall(r"```console\n(.*?)```", readme, re.DOTALL)))
    given = set(re.findall(r"--build-arg (\w+)=", readme))
    known = {
        rest.partition("=")[0]
        for word, rest in instructions(DOCKER / "Dockerfile")
        if word == "ARG"
    }
    assert given
    assert given <= known
    runs = [
        shlex.split(line.partition("haystack:cuda ")[2])
        for line in text.splitlines()
        if "docker run" in line
    ]
    assert runs
    for words in runs:
        assert callable(parse(words).run)
    for name in re.findall(r"`(docker/[\w./]+)`", readme):
        assert (ROOT / name).exists()


def test_the_gpu_test_runs_what_the_command_line_takes():
    text = (DOCKER / "gpu_test.sh").read_text(encoding="utf-8")
    commands = re.findall(r"^ *haystack ([a-z].*)$", re.sub(r"\\\n\s*", "", text), re.MULTILINE)
    assert len(commands) == 5
    for command in commands:
        words = command.partition("|")[0].replace("$device", "cuda")
        assert callable(parse(shlex.split(words)).run)
