import bz2
import gzip
import io
import json
import lzma
import os
import tarfile

import pytest
from PIL import Image

from haystack.errors import InputError
from haystack.io.images import open_source
from haystack.io.tar_source import TarSource


def jpeg(colour):
    stream = io.BytesIO()
    Image.new("RGB", (8, 6), colour).save(stream, "JPEG")
    return stream.getvalue()


def make_tar(path, members, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", **options) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


RED, BLUE = jpeg("red"), jpeg("blue")


@pytest.fixture
def tars(tmp_path):
    """Shards of unequal length, one of them empty; names repeat across them."""
    folder = tmp_path / "tars"
    make_tar(folder / "a.tar", {"x.jpg": RED, "x.json": b"{}", "deep/y.png": BLUE})
    make_tar(folder / "b.tar", {"x.jpg": BLUE})
    make_tar(folder / "c.tar", {})
    return folder


@pytest.fixture
def no_scan(monkeypatch):
    """From when it is called on, tars are not gone through."""

    def forbid():
        def opened(*_, **__):
            raise AssertionError("the tar was gone through")

        monkeypatch.setattr(tarfile, "open", opened)

    return forbid


def everything(source):
    return {shard: list(source.iterate(shard)) for shard in source.shards()}


def test_what_was_read_once_is_found_without_going_through_it_again(tars, tmp_path, no_scan):
    index = tmp_path / "work" / "index"
    first = open_source(tars, index_folder=index)
    assert first.keys() is None
    content = everything(first)
    assert [len(images) for images in content.values()] == [2, 1, 0]
    no_scan()
    again = open_source(tars, index_folder=index)
    for images in content.values():
        for key, expected in images:
            assert again.read(key) == expected
    keys = again.keys()
    assert list(keys) == ["a/x.jpg", "a/deep/y.png", "b/x.jpg"]
    assert len(keys) == 3
    assert "b/x.jpg" in keys
    for other in ("b/deep/y.png", "c/x.jpg", "d/x.jpg", "x.jpg"):
        assert other not in keys
        with pytest.raises(InputError, match="in none of the tars"):
            again.read(other)


def test_a_single_image_leaves_an_index_of_its_tar_behind(tars, tmp_path, no_scan):
    open_source(tars, index_folder=tmp_path).read("a/x.jpg")
    no_scan()
    again = open_source(tars, index_folder=tmp_path)
    assert again.read("a/deep/y.png") == BLUE
    assert again.keys() is None, "the other tars were not looked at"


def test_streaming_and_scanning_write_the_same(tars, tmp_path):
    streamed, scanned = tmp_path / "streamed", tmp_path / "scanned"
    everything(open_source(tars, index_folder=streamed))
    source = open_source(tars, index_folder=scanned)
    for key in ("a/x.jpg", "b/x.jpg"):
        source.read(key)
    for name in ("a.parquet", "b.parquet"):
        assert (streamed / name).read_bytes() == (scanned / name).read_bytes()
    assert {path.name for path in streamed.iterdir()} == {f"{name}.parquet" for name in "abc"}


def test_without_a_folder_nothing_is_kept(tars):
    source = open_source(tars)
    everything(source)
    assert source.keys() is None
    assert source.read("b/x.jpg") == BLUE
    assert sorted(path.name for path in tars.iterdir()) == ["a.tar", "b.tar", "c.tar"]


def test_reading_that_was_cut_short_leaves_no_index(tars, tmp_path):
    images = open_source(tars, index_folder=tmp_path / "index").iterate("a")
    next(images)
    images.close()
    assert not (tmp_path / "index").exists()


def test_a_tar_that_changed_is_gone_through_again(tars, tmp_path):
    source = open_source(tars, index_folder=tmp_path)
    everything(source)
    make_tar(tars / "b.tar", {"first.jpg": RED, "x.jpg": RED})
    assert source.keys() is None
    assert source.read("b/x.jpg") == RED, "in a process that has read the old one, too"
    assert open_source(tars, index_folder=tmp_path).read("b/first.jpg") == RED
    assert len(source.keys()) == 4
    stat = (tars / "a.tar").stat()
    os.utime(tars / "a.tar", ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert source.keys() is None, "of the same size, but of another time"


@pytest.mark.parametrize("content", [b"", b"no index", b"PAR1" * 20])
def test_an_index_that_cannot_be_read_is_made_anew(tars, tmp_path, content, caplog):
    everything(open_source(tars, index_folder=tmp_path))
    (tmp_path / "a.parquet").write_bytes(content)
    source = open_source(tars, index_folder=tmp_path)
    assert source.keys() is None
    assert "the index of the tar a cannot be read" in caplog.text
    assert source.read("a/x.jpg") == RED
    assert len(source.keys()) == 3


def test_an_index_that_cannot_be_written_is_done_without(tars, tmp_path, caplog):
    (tmp_path / "file").touch()
    source = open_source(tars, index_folder=tmp_path / "file" / "index")
    everything(source)
    assert "the index of the tar a cannot be kept" in caplog.text
    assert source.read("a/x.jpg") == RED
    assert source.keys() is None


def test_of_a_tar_that_breaks_off_the_whole_images_are_known(tmp_path):
    path = tmp_path / "cut.tar"
    make_tar(path, {"x.jpg": RED, "y.jpg": bytes(5000)})
    path.write_bytes(path.read_bytes()[:3000])
    for name in ("streamed", "scanned"):
        source = open_source(path, index_folder=tmp_path / name)
        if name == "streamed":
            with pytest.raises(InputError, match="breaks off after 1 images"):
                list(source.iterate("cut"))
        assert source.read("cut/x.jpg") == RED
        with pytest.raises(InputError, match="in none of the tars"):
            source.read("cut/y.jpg")
        assert list(source.keys()) == ["cut/x.jpg"]


def test_a_tar_that_is_no_tar_has_no_images(tmp_path):
    path = tmp_path / "bad.tar"
    path.write_bytes(b"not a tar" * 200)
    source = open_source(path, index_folder=tmp_path / "index")
    with pytest.raises(InputError, match="not a readable tar"):
        list(source.iterate("bad"))
    assert list(source.keys()) == []


def test_a_tar_that_vanished_is_said_to_be_unreadable(tars, tmp_path):
    source = open_source(tars, index_folder=tmp_path)
    everything(source)
    (tars / "b.tar").unlink()
    with pytest.raises(InputError, match=r"b\.tar, x\.jpg: the tar is gone or cannot be read"):
        source.read("b/x.jpg")
    assert source.keys() is None


def test_tars_of_one_name_in_several_folders(tmp_path):
    make_tar(tmp_path / "one" / "sa_0.tar", {"x.jpg": RED})
    make_tar(tmp_path / "two" / "sa_0.tar", {"x.jpg": BLUE})
    make_tar(tmp_path / "sa_0.tar", {"z.jpg": RED})
    make_tar(tmp_path / ".hidden" / "sa_0.tar", {"z.jpg": RED})
    source = open_source(tmp_path)
    assert source.shards() == ["one+sa_0", "sa_0", "two+sa_0"]
    content = dict(pair for images in everything(source).values() for pair in images)
    assert content == {"one+sa_0/x.jpg": RED, "two+sa_0/x.jpg": BLUE, "sa_0/z.jpg": RED}
    assert source.read("two+sa_0/x.jpg") == BLUE


def test_shards_of_one_name_are_refused(tmp_path):
    make_tar(tmp_path / "a" / "b.tar", {"x.jpg": RED})
    make_tar(tmp_path / "a+b.tar", {"x.jpg": RED})
    with pytest.raises(InputError, match=r"would both be the shard 'a\+b'; rename one"):
        open_source(tmp_path)


@pytest.mark.parametrize(
    ("suffix", "program", "compress"),
    [("gz", "gzip", gzip.compress), ("bz2", "bzip2", bz2.compress), ("xz", "xz", lzma.compress)],
)
def test_compressed_tars_are_refused(tars, suffix, program, compress):
    sentence = f"expected a plain tar, got one compressed by {program}.* {program} -d"
    content = compress((tars / "a.tar").read_bytes())
    (tars / "d.tar").write_bytes(content)  # only its content says so
    source = open_source(tars)
    with pytest.raises(InputError, match=rf"d\.tar: {sentence}"):
        list(source.iterate("d"))
    (tars / "d.tar").rename(tars / f"d.tar.{suffix}")
    for path in (tars, tars / f"d.tar.{suffix}"):
        with pytest.raises(InputError, match=rf"d\.tar\.{suffix}: {sentence}"):
            open_source(path)


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_long_and_foreign_names(tmp_path, format, no_scan):
    names = [f"{'folder/' * 40}{'long' * 30}.jpg", "größe/写真.jpg", "plain.jpg"]
    path = tmp_path / "t.tar"
    make_tar(path, {name: jpeg((40 * at, 0, 0)) for at, name in enumerate(names)}, format=format)
    source = open_source(path, index_folder=tmp_path / "index")
    images = list(source.iterate("t"))
    assert [key for key, _ in images] == [f"t/{name}" for name in names]
    no_scan()
    again = open_source(path, index_folder=tmp_path / "index")
    assert [again.read(key) for key, _ in images] == [content for _, content in images]
    assert list(again.keys()) == [key for key, _ in images]


def test_members_that_are_no_images_are_not_in_the_index(tmp_path):
    path = tmp_path / "t.tar"
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as archive:
        for name, content in (("x.jpg", RED), ("x.jpg", BLUE), ("\udcff.jpg", RED)):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        link = tarfile.TarInfo("link.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "x.jpg"
        archive.addfile(link)
    source = open_source(path, index_folder=tmp_path / "index")
    assert source.read("t/x.jpg") == RED, "the first of two"
    assert list(source.keys()) == ["t/x.jpg"]
    assert len(list(source.iterate("t"))) == 4
    assert list(source.keys()) == ["t/x.jpg"]


def test_images_with_holes_are_set_aside(tmp_path):
    """Their bytes do not stand in one piece, so that an offset would give something else."""
    path = tmp_path / "t.tar"
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as archive:
        info = tarfile.TarInfo("holes.jpg")
        info.type, info.size = tarfile.GNUTYPE_SPARSE, 512
        archive.addfile(info, io.BytesIO(bytes(512)))
        whole = tarfile.TarInfo("x.jpg")
        whole.size = len(RED)
        archive.addfile(whole, io.BytesIO(RED))
    source = open_source(path, index_folder=tmp_path / "index")
    (key, error), whole = source.iterate("t")
    assert key == "t/holes.jpg"
    assert "stored with holes" in error.message
    assert whole == ("t/x.jpg", RED)
    assert list(source.keys()) == ["t/x.jpg"]


def test_two_processes_may_write_one_index(tars, tmp_path):
    one, two = (TarSource({"a": tars / "a.tar"}, tmp_path) for _ in range(2))
    first, second = one.iterate("a"), two.iterate("a")
    assert next(first) == next(second)
    assert list(first) == list(second)
    assert [path.name for path in tmp_path.glob("*.parquet")] == ["a.parquet"]
    assert json.dumps(one.signature("a")) == json.dumps(two.signature("a"))


def test_an_index_with_damaged_pages_is_made_anew(tars, tmp_path, caplog):
    index = tmp_path / "index"
    expected = dict(
        image
        for shard in everything(open_source(tars, index_folder=index)).values()
        for image in shard
    )
    for path in index.iterdir():
        content = path.read_bytes()
        path.write_bytes(content[:4] + bytes(40) + content[44:])
    source = open_source(tars, index_folder=index)
    assert {key: source.read(key) for key in expected} == expected
    assert "cannot be read" in caplog.text


def test_the_index_of_a_twin_is_not_taken(tmp_path):
    for name in ("a", "b"):  # equal in size and time, other order
        images = [("x.jpg", RED), ("y.jpg", BLUE + bytes(600))]
        make_tar(tmp_path / f"{name}.tar", dict(images if name == "a" else images[::-1]))
        os.utime(tmp_path / f"{name}.tar", (0, 0))
    source = open_source(tmp_path, index_folder=tmp_path / "index")
    expected = dict(image for shard in everything(source).values() for image in shard)
    (tmp_path / "index" / "a.parquet").write_bytes((tmp_path / "index" / "b.parquet").read_bytes())
    source = open_source(tmp_path, index_folder=tmp_path / "index")
    assert {key: source.read(key) for key in expected} == expected


def test_a_tar_of_the_same_size_and_time_is_not_read_by_the_old_index(tars, tmp_path):
    index, tar = tmp_path / "index", tars / "a.tar"
    source = open_source(tars, index_folder=index)
    assert source.read("a/x.jpg") == RED
    before = tar.stat()
    make_tar(tar, {"x.json": b"{}", "deep/z.png": BLUE, "x.jpg": RED})
    os.utime(tar, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert tar.stat().st_size == before.st_size
    for reader in (source, open_source(tars, index_folder=index)):
        assert reader.read("a/x.jpg") == RED
        assert reader.read("a/deep/z.png") == BLUE
        with pytest.raises(InputError, match="in none of the tars"):
            reader.read("a/deep/y.png")


@pytest.mark.parametrize("kind", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_names_that_a_header_does_not_hold_are_read_by_the_index(tmp_path, no_scan, kind):
    names = ["x/" * 40 + "y" * 60 + ".jpg", "grün.jpg", "./plain.jpg"]
    make_tar(tmp_path / "t.tar", dict.fromkeys(names, RED), format=kind)
    list(open_source(tmp_path / "t.tar", index_folder=tmp_path / "index").iterate("t"))
    no_scan()
    again = open_source(tmp_path / "t.tar", index_folder=tmp_path / "index")
    for name in names:
        assert again.read(f"t/{name}") == RED
