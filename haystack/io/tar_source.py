"""Images in SA-1B-style tar shards, each read by its offset."""

from __future__ import annotations

import tarfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from haystack.errors import InputError
from haystack.io.image_source import IMAGE_SUFFIXES, UNDECODABLE, Content, state_of, text_of
from haystack.io.tar_index import Places, TarIndex

_COMPRESSIONS = {
    "gzip": ((".tar.gz", ".tgz"), b"\x1f\x8b"),
    "bzip2": ((".tar.bz2", ".tbz2", ".tbz"), b"BZh"),
    "xz": ((".tar.xz", ".txz"), b"\xfd7zXZ\0"),
    "zstd": ((".tar.zst", ".tzst"), b"\x28\xb5\x2f\xfd"),
}


class TarSource:
    """One shard a tar file; members that are not images (SA-1B's JSON) are passed over.

    Args:
        tars: by shard name.
        index_folder: keeps where the images lie, so that a later process reads one of them without
            going through the tar; None = each process finds it out for itself.
    """

    def __init__(self, tars: Mapping[str, Path], index_folder: Path | None = None) -> None:
        self._tars = dict(tars)
        self._index = None if index_folder is None else TarIndex(index_folder)
        # A few hundred bytes an image, 11,000 images a tar of SA-1B.
        self._places_of = lru_cache(maxsize=32)(self._find_places)

    def shards(self) -> list[str]:
        """Names of the shards: the tars' names without ``.tar``."""
        return list(self._tars)

    def keys(self) -> Collection[str] | None:
        """All image keys, read when asked for, once every tar was gone through; None before."""
        counts = [None if self._index is None else self._count(shard) for shard in self._tars]
        known = [count for count in counts if count is not None]
        return _TarKeys(self, sum(known)) if len(known) == len(counts) else None

    def iterate(self, shard: str) -> Iterator[tuple[str, Content]]:
        """Image key and bytes of every image of the tar, in the order of the tar."""
        state = state_of(self._tars[shard])
        places: Places = {}
        try:
            for archive, member, reason in self._members(shard):
                key = text_of(f"{shard}/{member.name}")
                if reason:
                    yield key, InputError(reason, path=key)
                    continue
                try:
                    stream = archive.extractfile(member)
                    content = stream.read() if stream is not None else b""
                except (tarfile.TarError, OSError, EOFError) as error:
                    self._breaks_off(shard, len(places), str(error), error)
                places[member.name] = (member.offset_data, member.size)
                yield key, content
        except InputError:
            self._keep(shard, state, places)
            raise
        self._keep(shard, state, places)

    def read(self, image_key: str) -> bytes:
        """Bytes of one image, by its offset inside the tar."""
        shard, _, name = image_key.partition("/")
        tar = self._tars.get(shard)
        if tar is not None and state_of(tar) is None:
            raise InputError("the tar is gone or cannot be read", path=tar, record=name)
        content = None if tar is None else self._read(shard, name)
        if content is None:
            raise InputError("this image is in none of the tars", record=image_key)
        return content

    def _read(self, shard: str, name: str) -> bytes | None:
        place = self._places(shard).get(name)
        try:
            with self._tars[shard].open("rb") as stream:
                if place is not None and not _is_at(stream, name, *place):
                    # Another tar of this name, size and time: what is known is of the old one.
                    place = self._find_anew(shard).get(name)
                if place is None:
                    return None
                offset, size = place
                stream.seek(offset)
                content = stream.read(size)
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror}", path=f"{shard}/{name}") from error
        if len(content) != size:
            raise InputError("the tar ends before this image does", path=f"{shard}/{name}")
        return content

    def signature(self, shard: str) -> dict[str, Any]:
        """The tar's size and modification time in nanoseconds; None: cannot be read."""
        return {"tar": state_of(self._tars[shard])}

    def names(self, shard: str) -> Iterable[str]:
        """Member names of the images of a tar, in its order."""
        return self._places(shard)

    def _places(self, shard: str) -> Places:
        state = state_of(self._tars[shard])
        return {} if state is None else self._places_of(shard, *state)

    def _find_places(self, shard: str, *state: int) -> Places:
        known = None if self._index is None else self._index.read(shard, state)
        return self._scanned(shard, state) if known is None else known

    def _find_anew(self, shard: str) -> Places:
        """The places of a tar whose index is not of it; the wrong ones are forgotten."""
        state = state_of(self._tars[shard])
        if state is None:
            return {}
        self._scanned(shard, state)
        self._places_of.cache_clear()
        return self._places(shard)

    def _scanned(self, shard: str, state: Sequence[int]) -> Places:
        """The places of a tar's images, read from its headers, and kept."""
        places: Places = {}
        try:
            for _, member, reason in self._members(shard):
                if not reason:
                    places[member.name] = (member.offset_data, member.size)
        except InputError:
            pass  # what stands before the break can be read; iterate() reports the break
        # The header of an image may be there and its end not.
        places = {name: place for name, place in places.items() if sum(place) <= state[0]}
        self._keep(shard, state, places)
        return places

    def _keep(self, shard: str, state: Sequence[int] | None, places: Places) -> None:
        if self._index is not None and state is not None:
            self._index.write(shard, state, places)

    def _count(self, shard: str) -> int | None:
        state = state_of(self._tars[shard])
        return None if self._index is None or state is None else self._index.count(shard, state)

    def _members(self, shard: str) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo, str]]:
        """Members that are named like images, and why they are none, or "".

        It ends only where the tar says that it ends.
        """
        path = self._tars[shard]
        try:
            archive = tarfile.open(path, "r:")  # noqa: SIM115  closed below
        except (tarfile.TarError, OSError) as error:
            raise _not_a_tar(path, error) from error
        with archive:
            names: set[str] = set()
            while True:
                try:
                    member = archive.next()
                except (tarfile.TarError, OSError, EOFError) as error:
                    self._breaks_off(shard, len(names), str(error), error)
                if member is None:
                    # tarfile takes a damaged or missing header for the end.
                    reason = _why_no_end(path, archive.offset)
                    if reason:
                        self._breaks_off(shard, len(names), reason)
                    return
                named = Path(member.name).suffix.lower() in IMAGE_SUFFIXES
                if named and not member.isdir():
                    reason = _why_no_image(member, names)
                    if not reason:
                        names.add(member.name)
                    yield archive, member, reason

    def _breaks_off(
        self, shard: str, images: int, reason: str, cause: BaseException | None = None
    ) -> NoReturn:
        raise InputError(
            f"the tar breaks off after {images} images: {reason}", path=self._tars[shard]
        ) from cause


def _is_at(stream: BinaryIO, name: str, offset: int, size: int) -> bool:
    """Whether the header before ``offset`` is of a member of this name and size.

    A header holds a short name only; a long one, or one of other letters than ASCII's, may stand
    in further headers before it, and its size has to do.
    """
    stream.seek(max(0, offset - tarfile.BLOCKSIZE))
    try:
        member = tarfile.TarInfo.frombuf(
            stream.read(tarfile.BLOCKSIZE), tarfile.ENCODING, "surrogateescape"
        )
    except tarfile.HeaderError:
        return False
    short = name.isascii() and len(name) <= tarfile.LENGTH_NAME
    return member.size == size and (member.name == name or not short)


class _TarKeys(Collection[str]):
    """The image keys of all tars, of which the index of one is in memory at a time."""

    def __init__(self, source: TarSource, count: int) -> None:
        self._source = source
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        for shard in self._source.shards():
            yield from (f"{shard}/{name}" for name in self._source.names(shard))

    def __contains__(self, key: object) -> bool:
        shard, _, name = str(key).partition("/")
        return shard in self._source.shards() and name in self._source.names(shard)


def shard_names(tars: Iterable[Path], root: Path) -> dict[str, Path]:
    """Shard name -> tar: its path below ``root`` without ``.tar``, folders joined by ``+``.

    Raises:
        InputError: two tars would have one name.
    """
    shards: dict[str, Path] = {}
    for tar in tars:
        name = "+".join(tar.relative_to(root).with_suffix("").parts)
        other = shards.setdefault(name, tar)
        if other != tar:
            raise InputError(f"{other} and {tar} would both be the shard {name!r}; rename one")
    return shards


def _why_no_image(member: tarfile.TarInfo, names: Collection[str]) -> str:
    """Why a member that is named like an image cannot be used, or ""."""
    if text_of(member.name) != member.name:
        return UNDECODABLE
    if not member.isfile():
        return "a link inside the tar; store the image itself"
    if member.issparse():
        return "stored with holes inside the tar; store it whole (tar without --sparse)"
    if member.name in names:
        return "the tar has a second image of this name; the first one is used; rename it"
    return ""


def refuse_compressed(paths: Iterable[Path]) -> None:
    """Check that no file is named like a compressed tar.

    Raises:
        InputError: one is.
    """
    for path in paths:
        for program, (suffixes, _) in _COMPRESSIONS.items():
            if path.name.lower().endswith(suffixes):
                raise _compressed(path, program)


def _compressed(path: Path, program: str) -> InputError:
    return InputError(
        f"expected a plain tar, got one compressed by {program}; single images are read by their "
        f"place in the tar, so decompress it: {program} -d FILE (JPEGs take no more room)",
        path=path,
    )


def _not_a_tar(path: Path, error: Exception) -> InputError:
    try:
        with path.open("rb") as stream:
            start = stream.read(6)
    except OSError:
        start = b""
    for program, (_, magic) in _COMPRESSIONS.items():
        if start.startswith(magic):
            return _compressed(path, program)
    return InputError(f"not a readable tar: {error}", path=path)


def _why_no_end(tar: Path, offset: int) -> str:
    """Why no tar ends at ``offset``, or "" where it does: zeros, from there to the file's end."""
    with tar.open("rb") as stream:
        stream.seek(offset)
        block = stream.read(tarfile.BLOCKSIZE)
        if len(block) < tarfile.BLOCKSIZE:
            return "the file ends before the tar's end mark"
        if any(block):
            return f"no valid member header at byte {offset}"
        while block := stream.read(1 << 20):
            if block.count(0) != len(block):
                return f"more data behind the end mark at byte {offset}"
    return ""
