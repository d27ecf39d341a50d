from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest
from weight_server import Server, weight_file

from haystack.errors import HaystackError, InputError
from haystack.weights import find, known
from haystack.weights.download import pull

NAME = "dinov2_vits14"
FILE = "dinov2_vits14_pretrain.pth"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_downloaded_and_its_checksum_recorded(folder: Path, server: Server) -> None:
    seen: list[tuple[int, int | None]] = []
    path = pull(NAME, lambda done, total: seen.append((done, total)))
    assert path == folder / FILE == find(NAME)
    assert path.read_bytes() == server.content
    assert server.asked == [(f"/mirror/{FILE}", "")]
    digest = hashlib.sha256(server.content).hexdigest()
    assert (folder / f"{FILE}.sha256").read_text() == f"{digest}  {FILE}\n"
    assert names(folder) == [FILE, f"{FILE}.sha256"]
    assert seen[-1] == (len(server.content), len(server.content))
    assert pull(NAME) == path
    assert len(server.asked) == 1, "what is here is not asked for again"


def test_a_cut_connection_is_taken_up_where_it_was(folder: Path, server: Server) -> None:
    server.cuts = [100_000, 70_000]
    assert pull(NAME).read_bytes() == server.content
    assert [wanted for _, wanted in server.asked] == ["", "bytes=100000-", "bytes=170000-"]


def test_what_came_is_kept_for_the_next_call(folder: Path, server: Server) -> None:
    server.cuts = [50_000, 0, 0, 0, 0]
    with pytest.raises(HaystackError, match=r"ended after 50000 bytes .*the same command again"):
        pull(NAME)
    assert names(folder) == [f"{FILE}.part", f"{FILE}.part.json"]
    server.cuts = []
    assert pull(NAME).read_bytes() == server.content
    assert server.asked[-1] == (f"/mirror/{FILE}", "bytes=50000-")


def test_a_killed_download_goes_on(folder: Path, server: Server) -> None:
    server.content = weight_file(size=5_000_000)
    code = (
        "import os\n"
        "from haystack.weights.download import pull\n"
        f"pull({NAME!r}, lambda done, total: done > 1_000_000 and os.kill(os.getpid(), 9))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    kept = (folder / f"{FILE}.part").stat().st_size
    assert 1_000_000 < kept < 5_000_000
    assert pull(NAME).read_bytes() == server.content
    assert server.asked[-1][1] == f"bytes={kept}-"


def test_a_file_that_lacks_nothing_but_its_name_is_not_asked_for(
    folder: Path, server: Server
) -> None:
    folder.mkdir()
    url = f"{server.address}/mirror/{FILE}"
    note = {"url": url, "validator": '"one"', "total": len(server.content)}
    (folder / f"{FILE}.part.json").write_text(json.dumps(note))
    (folder / f"{FILE}.part").write_bytes(server.content)
    assert pull(NAME).read_bytes() == server.content
    assert server.asked == []


@pytest.mark.parametrize(
    "change", ["other content", "no ranges", "weak etag", "no validator", "shorter"]
)
def test_parts_of_two_files_are_never_joined(folder: Path, server: Server, change: str) -> None:
    if change == "weak etag":
        server.etag = 'W/"one"'
    elif change == "no validator":
        server.etag = ""
    server.cuts = [60_000, 0, 0, 0, 0]
    with pytest.raises(HaystackError):
        pull(NAME)
    server.cuts = []
    if change == "other content":
        server.content, server.etag = weight_file(1), '"two"'
    elif change == "shorter":  # and the server's mark is the same all the same
        server.content = weight_file(size=1000)
    elif change == "no ranges":
        server.ranges = False
    assert pull(NAME).read_bytes() == server.content


def test_the_date_serves_where_there_is_no_strong_etag(folder: Path, server: Server) -> None:
    server.etag, server.modified = 'W/"one"', "Sat, 29 Oct 1994 19:43:31 GMT"
    server.cuts = [60_000]
    assert pull(NAME).read_bytes() == server.content
    assert server.asked[-1][1] == "bytes=60000-"


def test_a_wrong_part_is_refused(folder: Path, server: Server) -> None:
    server.cuts, server.shift = [60_000], 5
    with pytest.raises(HaystackError, match="another part than was asked for"):
        pull(NAME)


def test_another_mirror_begins_anew(
    folder: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.cuts = [60_000, 0, 0, 0, 0]
    with pytest.raises(HaystackError):
        pull(NAME)
    monkeypatch.setenv("HAYSTACK_WEIGHTS_MIRROR", f"{server.address}/other")
    assert pull(NAME).read_bytes() == server.content
    assert server.asked[-1] == (f"/other/{FILE}", "")


def test_web_pages_are_no_weights(folder: Path, server: Server) -> None:
    server.content, server.kind = b"<!DOCTYPE html><p>Sign in", "text/html; charset=utf-8"
    with pytest.raises(HaystackError, match=r"gives a web page \(text/html\) .*HAYSTACK_WEIGHTS"):
        pull(NAME)
    server.kind = "application/octet-stream"
    with pytest.raises(HaystackError, match=r"no weight file: it begins with b'<!DOCTYPE.*removed"):
        pull(NAME)
    assert not any(FILE in name and "sha256" in name for name in names(folder))
    assert not (folder / FILE).exists()


def test_a_login_page_in_between_costs_nothing_that_came(folder: Path, server: Server) -> None:
    server.cuts = [60_000, 0, 0, 0, 0]
    with pytest.raises(HaystackError):
        pull(NAME)
    server.cuts, server.kind, server.ranges = [], "text/html", False
    with pytest.raises(HaystackError, match="web page"):
        pull(NAME)
    server.kind, server.ranges = "application/octet-stream", True
    assert pull(NAME).read_bytes() == server.content
    assert server.asked[-1][1] == "bytes=60000-"


def test_a_file_without_its_end_is_refused_where_nobody_says_how_long_it_is(
    folder: Path, server: Server
) -> None:
    server.length, server.cuts = False, [60_000]
    with pytest.raises(HaystackError, match="no weight file: its end is missing"):
        pull(NAME)
    assert pull(NAME).read_bytes() == server.content


def test_the_checksum_in_a_name_is_compared(
    folder: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(HaystackError, match=r"SHA-256 \w{64}, expected 0676ba61 by its name"):
        pull("resnet50")
    assert names(folder) == []
    digits = hashlib.sha256(server.content).hexdigest()[:8]
    monkeypatch.setattr(type(known("resnet50")), "checksum_prefix", digits)
    assert pull("resnet50").is_file()


def test_the_recorded_checksum_is_compared(folder: Path, server: Server) -> None:
    path = pull(NAME)
    path.unlink()
    server.content = weight_file(2)
    with pytest.raises(HaystackError, match=rf"expected \w{{64}} by {folder}.*it is removed"):
        pull(NAME)
    assert names(folder) == [f"{FILE}.sha256"]
    server.content = weight_file()
    assert pull(NAME) == path


def test_a_file_that_changed_is_named_by_pull_and_by_find(folder: Path, server: Server) -> None:
    path = pull(NAME)
    damaged = bytearray(server.content)
    damaged[1000] ^= 1
    path.write_bytes(damaged)
    for look in (pull, find):
        with pytest.raises(InputError, match=r"not the file that it was.*pull dinov2_vits14"):
            look(NAME)


@pytest.mark.parametrize("status", [403, 404, 410])
def test_a_file_that_is_not_there_is_not_asked_for_twice(
    folder: Path, server: Server, status: int
) -> None:
    server.status = [status]
    with pytest.raises(HaystackError, match=rf"answers {status} .*{FILE}; if upstream has"):
        pull(NAME)
    assert len(server.asked) == 1


def test_a_busy_server_is_asked_again(folder: Path, server: Server) -> None:
    server.status = [503, 429, 500]
    assert pull(NAME).is_file()
    (folder / FILE).unlink()
    server.status = [503] * 9
    with pytest.raises(HaystackError, match="answers 503"):
        pull(NAME)


def test_nobody_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HAYSTACK_WEIGHTS_MIRROR", "http://127.0.0.1:9")
    with pytest.raises(HaystackError, match="refused"):
        pull(NAME)
    monkeypatch.setenv("HAYSTACK_WEIGHTS_MIRROR", "http://no-such-host.invalid")
    with pytest.raises(HaystackError, match=r"cannot reach no-such-host\.invalid .*by hand"):
        pull(NAME)
    monkeypatch.setenv("HAYSTACK_WEIGHTS_MIRROR", "/srv/weights")
    with pytest.raises(InputError, match="expects an http or https address, got '/srv/weights'"):
        pull(NAME)


def test_too_little_space_is_said_before_anything_comes(
    folder: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(9, 9, 100_000))
    with pytest.raises(HaystackError, match=r"0 MB are to come and .* has 0 MB left: free some"):
        pull(NAME)
    assert (folder / f"{FILE}.part").stat().st_size == 0


def test_a_disk_that_fills_up_keeps_what_came(folder: Path, server: Server) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))
    try:
        with pytest.raises(HaystackError, match=r"cannot write .*\(File too large\); what came"):
            pull(NAME)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (folder / f"{FILE}.part").stat().st_size == 200_000
    assert pull(NAME).read_bytes() == server.content
    assert server.asked[-1][1] == "bytes=200000-"


def test_a_folder_that_cannot_be_written_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write_text("a file in its place")
    with pytest.raises(InputError, match=r"cannot write there .*HAYSTACK_WEIGHTS=FOLDER"):
        pull(NAME)


def test_two_processes_do_not_mix_their_downloads(folder: Path, server: Server) -> None:
    import fcntl

    folder.mkdir()
    with (folder / f"{FILE}.part").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(HaystackError, match="another process is downloading"):
            pull(NAME)
    assert server.asked == []
    assert pull(NAME).read_bytes() == server.content


def test_a_note_that_is_torn_begins_anew(folder: Path, server: Server) -> None:
    folder.mkdir()
    (folder / f"{FILE}.part").write_bytes(b"rubbish")
    (folder / f"{FILE}.part.json").write_text("{")
    assert pull(NAME).read_bytes() == server.content
    assert os.listdir(folder) == [FILE, f"{FILE}.sha256"] or len(names(folder)) == 2


@pytest.mark.parametrize("junk", [b"\xff\xfe\x00", b"1234  file", b"g" * 64])
def test_a_record_that_is_no_checksum_is_named_before_anything_comes(
    folder: Path, server: Server, junk: bytes
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{FILE}.sha256").write_bytes(junk)
    with pytest.raises(InputError, match="expected a SHA-256 of 64 hexadecimal digits"):
        pull(NAME)
    assert not server.asked


def test_a_record_by_another_program_is_understood(folder: Path, server: Server) -> None:
    path = pull(NAME)
    record = folder / f"{FILE}.sha256"
    record.write_bytes(b"\xef\xbb\xbf" + record.read_bytes().upper())
    assert pull(NAME) == path


@pytest.mark.parametrize(
    "mirror", ["http://[::1", "http://h:port/", "http:///x", "http://h/a b", "ftp://h", "h/x"]
)
def test_a_mirror_that_is_no_address_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, mirror: str
) -> None:
    monkeypatch.setenv("HAYSTACK_WEIGHTS_MIRROR", mirror)
    with pytest.raises(InputError, match="HAYSTACK_WEIGHTS_MIRROR expects an http or https"):
        pull(NAME)
