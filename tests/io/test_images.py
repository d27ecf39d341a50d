import io
import tarfile

import pytest
from PIL import Image

from haystack.errors import InputError
from haystack.io.images import decode_image, open_source


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
