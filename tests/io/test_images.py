import io
import json
import os
import tarfile
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from haystack.errors import InputError
from haystack.io.images import decode_image, open_pictures, open_source


def jpeg(colour):
    stream = io.BytesIO()
    Image.new("RGB", (8, 6), colour).save(stream, "JPEG")
    return stream.getvalue()


def make_tar(path, members):
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def test_a_folder_is_cut_into_shards_in_the_order_of_names(tmp_path):
    (tmp_path / "sub").mkdir()
    for name in ("b.jpg", "a.JPG", "sub/c.png", "notes.txt", ".hidden.jpg"):
        (tmp_path / name).write_bytes(jpeg("red"))
    source = open_source(tmp_path, shard_size=2)
    assert source.shards() == ["000000", "000001"]
    assert [key for key, _ in source.iterate("000000")] == ["a.JPG", "b.jpg"]
    assert [key for key, _ in source.iterate("000001")] == ["sub/c.png"]
    assert source.read("sub/c.png") == jpeg("red")
    assert set(source.signature("000001")) == {"sub/c.png"}


def test_only_keys_of_the_source_are_read(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jpg").write_bytes(jpeg("red"))
    (tmp_path / "secret.jpg").write_bytes(b"secret")
    source = open_source(tmp_path / "in")
    with pytest.raises(InputError, match="not in the source"):
        source.read("../secret.jpg")


def test_tars_are_shards_and_names_may_repeat_across_them(tmp_path):
    make_tar(tmp_path / "sa_1.tar", {"x.jpg": jpeg("red"), "x.json": b"{}", "y.jpg": jpeg("blue")})
    make_tar(tmp_path / "sa_0.tar", {"x.jpg": jpeg("green")})
    source = open_source(tmp_path)
    assert source.shards() == ["sa_0", "sa_1"]
    images = dict(source.iterate("sa_1"))
    assert list(images) == ["sa_1/x.jpg", "sa_1/y.jpg"]
    assert source.read("sa_1/y.jpg") == images["sa_1/y.jpg"] == jpeg("blue")
    assert source.read("sa_0/x.jpg") == jpeg("green")
    for unknown in ("sa_1/z.jpg", "sa_2/x.jpg", "x.jpg"):
        with pytest.raises(InputError, match="in none of the tars"):
            source.read(unknown)
    assert open_source(tmp_path / "sa_0.tar").shards() == ["sa_0"]


def test_a_tar_that_breaks_off_gives_what_came_before_then_says_so(tmp_path):
    path = tmp_path / "cut.tar"
    make_tar(path, {"x.jpg": jpeg("red"), "y.jpg": bytes(5000)})
    path.write_bytes(path.read_bytes()[:3000])
    source = open_source(path)
    images = source.iterate("cut")
    assert next(images)[0] == "cut/x.jpg"
    with pytest.raises(InputError, match=r"cut.tar: the tar breaks off after 1 images"):
        next(images)
    assert source.read("cut/x.jpg") == jpeg("red")


def test_a_file_that_is_no_tar_gets_one_sentence(tmp_path):
    (tmp_path / "bad.tar").write_bytes(b"not a tar" * 200)
    source = open_source(tmp_path)
    with pytest.raises(InputError, match="not a readable tar"):
        list(source.iterate("bad"))


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda folder: None, "no images"),
        (lambda folder: (folder / "a.jpg").write_bytes(b"x"), None),
    ],
)
def test_empty_folders_are_refused(tmp_path, prepare, message):
    prepare(tmp_path)
    if message is None:
        assert open_source(tmp_path).shards() == ["000000"]
    else:
        with pytest.raises(InputError, match=message):
            open_source(tmp_path)


def test_images_beside_tars_and_other_files_are_refused(tmp_path):
    make_tar(tmp_path / "s.tar", {})
    (tmp_path / "a.jpg").write_bytes(jpeg("red"))
    with pytest.raises(InputError, match="1 tar shards and 1 loose images"):
        open_source(tmp_path)
    with pytest.raises(InputError, match="got this file"):
        open_source(tmp_path / "a.jpg")
    with pytest.raises(InputError, match="no such folder"):
        open_source(tmp_path / "none")


@pytest.mark.parametrize("content", [b"", b"no image", jpeg("red")[:-150]])
def test_broken_images_name_their_key(content):
    with pytest.raises(InputError, match=r"shard/x\.jpg"):
        decode_image(content, "shard/x.jpg")


def test_images_are_decoded_to_rgb():
    stream = io.BytesIO()
    Image.new("L", (3, 2), 7).save(stream, "PNG")
    picture = decode_image(stream.getvalue(), "x.png")
    assert picture.mode == "RGB"
    assert picture.size == (3, 2)


HEADER = 512  # bytes of a tar member's header


def three_images(path):
    make_tar(path, {f"{name}.jpg": jpeg("red") for name in "xyz"})
    with tarfile.open(path) as archive:
        return [member.offset for member in archive]


def damage(path, kind):
    content = bytearray(path.read_bytes())
    second = three_images(path)[1]
    if kind == "checksum overwritten":
        content[second + 148 : second + 156] = b"0000000\0"
    elif kind == "header zeroed":
        content[second : second + HEADER] = bytes(HEADER)
    elif kind == "header overwritten":
        content[second : second + HEADER] = b"\xa5" * HEADER
    elif kind == "cut at a member":
        del content[second:]
    elif kind == "cut in a header":
        del content[second + 100 :]
    elif kind == "cut in the end mark":
        del content[three_images(path)[2] + 2 * HEADER + len(jpeg("red")) // HEADER * HEADER + 9 :]
    else:  # "another tar behind"
        content += bytes(content)
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("kind", "images"),
    [
        ("checksum overwritten", 1),
        ("header zeroed", 1),
        ("header overwritten", 1),
        ("cut at a member", 1),
        ("cut in a header", 1),
        ("cut in the end mark", 3),
        ("another tar behind", 3),
    ],
)
def test_a_damaged_tar_never_ends_silently(tmp_path, kind, images):
    path = tmp_path / "t.tar"
    three_images(path)
    damage(path, kind)
    source = open_source(path)
    rest = source.iterate("t")
    found = list(islice(rest, images))
    assert found == [(f"t/{name}.jpg", jpeg("red")) for name in "xyz"[:images]]
    with pytest.raises(InputError, match=rf"t.tar: the tar breaks off after {images} images: \w+"):
        next(rest)
    assert [source.read(key) for key, _ in found] == [jpeg("red")] * images


def test_whole_tars_end_well(tmp_path):
    make_tar(tmp_path / "empty.tar", {})
    make_tar(tmp_path / "other.tar", {"a.json": b"{}"})
    three_images(tmp_path / "three.tar")
    minimal = (tmp_path / "three.tar").read_bytes().rstrip(b"\0")
    padded = minimal + bytes(-len(minimal) % HEADER + HEADER)  # one zero block is an end, too
    (tmp_path / "short.tar").write_bytes(padded)
    source = open_source(tmp_path)
    counts = {shard: len(list(source.iterate(shard))) for shard in source.shards()}
    assert counts == {"empty": 0, "other": 0, "three": 3, "short": 3}
    assert source.keys() is None


def test_members_that_cannot_be_used_are_named(tmp_path):
    path = tmp_path / "t.tar"
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as archive:
        for name, colour in (("x.jpg", "red"), ("x.jpg", "blue"), ("\udcff.jpg", "red")):
            info = tarfile.TarInfo(name)
            info.size = len(jpeg(colour))
            archive.addfile(info, io.BytesIO(jpeg(colour)))
        link = tarfile.TarInfo("link.jpg")
        link.type, link.linkname = tarfile.LNKTYPE, "x.jpg"
        archive.addfile(link)
    source = open_source(path)
    first, *others = source.iterate("t")
    assert first == ("t/x.jpg", jpeg("red"))
    assert source.read("t/x.jpg") == jpeg("red")
    assert [key for key, _ in others] == ["t/x.jpg", "t/\\xff.jpg", "t/link.jpg"]
    for (_, error), text in zip(others, ("second image", "not valid UTF-8", "link"), strict=True):
        assert isinstance(error, InputError)
        assert text in error.message


def test_odd_entries_of_a_folder_do_not_stop_the_rest(tmp_path, monkeypatch):
    (tmp_path / "a.jpg").write_bytes(jpeg("red"))
    (tmp_path / "dir.jpg").mkdir()
    (tmp_path / "dir.jpg" / "inside.png").write_bytes(jpeg("blue"))
    (tmp_path / "dangling.jpg").symlink_to(tmp_path / "nowhere.jpg")
    (tmp_path / "locked.jpg").write_bytes(jpeg("red"))
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / os.fsdecode(b"caf\xe9.jpg")).write_bytes(jpeg("red"))
    read_bytes = Path.read_bytes

    def read(path):
        if path.name == "locked.jpg":
            raise PermissionError(13, "Permission denied")
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", read)
    source = open_source(tmp_path)
    images = dict(source.iterate("000000"))
    good = {key for key, content in images.items() if isinstance(content, bytes)}
    assert good == {"a.jpg", "dir.jpg/inside.png"}
    bad = {key: content.message for key, content in images.items() if key not in good}
    assert bad == {
        "dangling.jpg": "not a file, or a link that leads nowhere",
        "pipe.jpg": "not a file, or a link that leads nowhere",
        "locked.jpg": "cannot be read: Permission denied",
        "caf\\xe9.jpg": "its name is not valid UTF-8; rename it",
    }
    assert set(source.keys()) == set(images)
    before = source.signature("000000")
    json.dumps(before, ensure_ascii=False).encode()  # as fingerprints need it
    assert before["dangling.jpg"] is None
    (tmp_path / "nowhere.jpg").write_bytes(jpeg("red"))
    assert source.signature("000000") != before, "a mended image is looked at again"


def test_a_folder_that_cannot_be_listed_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "a.jpg").write_bytes(jpeg("red"))
    (tmp_path / "sub").mkdir()
    scandir = os.scandir

    def locked(path):
        if str(path).endswith("sub"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", locked)
    with pytest.raises(InputError, match="sub: cannot list this folder: Permission denied"):
        open_source(tmp_path)


def test_a_tar_that_cannot_be_opened_is_an_error_of_its_shard(tmp_path):
    three_images(tmp_path / "t.tar")
    (tmp_path / "gone.tar").symlink_to(tmp_path / "nowhere")
    source = open_source(tmp_path)
    assert source.shards() == ["gone", "t"]
    assert source.signature("gone") == {"tar": None}
    with pytest.raises(InputError, match="not a readable tar"):
        list(source.iterate("gone"))


@pytest.mark.parametrize(("kind", "dtype"), [("PNG", "<u2"), ("TIFF", "<u2"), ("TIFF", ">u2")])
def test_sixteen_bit_images_keep_their_upper_eight_bits(kind, dtype):
    values = np.array([[0, 255, 256, 0x80FF, 0xFFFF]], dtype=dtype)
    stream = io.BytesIO()
    Image.fromarray(values).save(stream, kind)
    picture = decode_image(stream.getvalue(), "x")
    assert picture.mode == "RGB"
    assert np.asarray(picture)[0, :, 1].tolist() == [0, 0, 1, 128, 255]


@pytest.mark.parametrize(("dtype", "mode"), [("i4", "I"), ("f4", "F")])
def test_values_without_a_scale_are_refused(dtype, mode):
    stream = io.BytesIO()
    Image.fromarray(np.array([[0, 7, 70_000]], dtype=dtype)).save(stream, "TIFF")
    with pytest.raises(
        InputError, match=rf"x\.tif: the image's values are of Pillow's mode '{mode}'"
    ):
        decode_image(stream.getvalue(), "x.tif")


def test_pictures_are_named_one_by_one_or_by_a_pattern(tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    for name in ("b.jpg", "a.jpg", "sub/c.png"):
        (tmp_path / name).write_bytes(jpeg("red"))
    monkeypatch.chdir(tmp_path)
    source, root = open_pictures(["b.jpg", "sub/c.png", "b.jpg"])
    assert root == tmp_path
    assert list(source.keys()) == ["b.jpg", "sub/c.png"]
    source, root = open_pictures(["*.jpg"])
    assert list(source.keys()) == ["a.jpg", "b.jpg"]
    source, root = open_pictures(["sub/c.png"])
    assert (root, list(source.keys())) == (tmp_path / "sub", ["c.png"])
    source, root = open_pictures(["."])
    assert (len(source.keys()), str(root)) == (3, ".")
    make_tar(tmp_path / "x.tar", {"t.jpg": jpeg("red")})
    source, root = open_pictures(["x.tar"])
    assert root is None
    assert [key for key, _ in source.iterate("x")] == ["x/t.jpg"]


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        (["none.jpg"], "none.jpg: expected picture files; no such picture"),
        (["no*.jpg"], "no such picture"),
        (["a.jpg", "sub"], "sub: expected picture files; give one folder at a time"),
        (["notes.txt"], "notes.txt: expected a picture"),
    ],
)
def test_what_is_no_picture_is_refused(tmp_path, monkeypatch, paths, words):
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.jpg").write_bytes(jpeg("red"))
    (tmp_path / "notes.txt").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=words.replace("*", "[*]")):
        open_pictures(paths)
