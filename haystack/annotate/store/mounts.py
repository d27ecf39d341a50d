"""Which file system a path is on: SQLite's write-ahead log works on local disks alone.

The log is shared between processes through memory that is mapped from a file. Over a network the
processes of two machines do not see each other's mappings, and many network file systems lock
badly besides: such a database is damaged sooner or later (https://sqlite.org/wal.html).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

_NETWORK = {
    "nfs": "NFS",
    "nfs4": "NFS",
    "cifs": "SMB/CIFS",
    "smb3": "SMB/CIFS",
    "smbfs": "SMB/CIFS",
    "lustre": "Lustre",
    "gpfs": "GPFS",
    "beegfs": "BeeGFS",
    "ceph": "CephFS",
    "9p": "9p, a folder of another system",
    "afs": "AFS",
    "orangefs": "OrangeFS",
    "pvfs2": "OrangeFS",
    "panfs": "PanFS",
    "wekafs": "WekaFS",
    "vboxsf": "a folder shared by VirtualBox",
}
_NETWORK_FUSE = {
    "sshfs": "sshfs",
    "ceph-fuse": "CephFS",
    "ceph": "CephFS",
    "glusterfs": "GlusterFS",
    "juicefs": "JuiceFS",
    "mfs": "MooseFS",
    "moosefs": "MooseFS",
    "lizardfs": "LizardFS",
    "seaweedfs": "SeaweedFS",
    "s3fs": "S3",
    "goofys": "S3",
    "mount-s3": "S3",
    "gcsfuse": "Google Cloud Storage",
    "blobfuse": "Azure Blob Storage",
    "blobfuse2": "Azure Blob Storage",
    "rclone": "rclone",
    "davfs": "WebDAV",
    "smbnetfs": "SMB/CIFS",
    "curlftpfs": "FTP",
    "hdfs": "HDFS",
    "fuse_dfs": "HDFS",
    "cvmfs2": "CVMFS",
    "vmhgfs-fuse": "a folder shared by VMware",
}
"""Other kinds of FUSE (overlays of containers, encryption, NTFS) lie on a local disk."""


@dataclass(frozen=True)
class Mount:
    """A mounted file system.

    Args:
        point: where it is mounted.
        kind: what Linux calls its type.
        source: what is mounted: a device, or a server and a path.
    """

    point: str
    kind: str
    source: str

    @property
    def network(self) -> str | None:
        """The network file system that it is, in words; None if it is none."""
        if self.kind.startswith("fuse."):
            return _NETWORK_FUSE.get(self.kind.removeprefix("fuse."))
        return _NETWORK.get(self.kind)


def mount_of(path: str | Path, table: str | None = None) -> Mount | None:
    """The file system that a path is on.

    Args:
        path: need not exist; links in it are followed.
        table: what ``/proc/self/mountinfo`` says, see proc(5); None to read it.

    Returns:
        None where it cannot be told (not Linux).
    """
    if table is None:
        try:
            table = Path("/proc/self/mountinfo").read_text(
                encoding="utf-8", errors="surrogateescape"
            )
        except OSError:
            return None
    place = os.path.realpath(path)
    best: Mount | None = None
    for line in table.splitlines():
        mount = _parse(line)
        if mount is None or not _is_below(place, mount.point):
            continue
        # What is mounted later over the same place hides what was there.
        if best is None or len(mount.point) >= len(best.point):
            best = mount
    return best


def _parse(line: str) -> Mount | None:
    before, separator, after = line.partition(" - ")
    left, right = before.split(" "), after.split(" ")
    if not separator or len(left) < 5 or len(right) < 2:
        return None
    return Mount(point=_plain(left[4]), kind=right[0], source=_plain(right[1]))


def _plain(field: str) -> str:
    r"""Blanks and backslashes are written as octal numbers, a blank as ``\040``."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field)


def _is_below(place: str, point: str) -> bool:
    return place == point or place.startswith(point.rstrip("/") + "/")
