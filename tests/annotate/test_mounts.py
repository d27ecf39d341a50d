"""SQLite databases are refused on file systems of other machines."""

from __future__ import annotations

from pathlib import Path

import pytest

import haystack.annotate.store.mounts as mounts
from haystack.annotate.store.database import Database
from haystack.annotate.store.mounts import mount_of
from haystack.errors import InputError

TABLE = r"""22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw
23 22 0:21 / /proc rw,nosuid - proc proc rw
40 22 0:40 / /home rw,relatime shared:20 master:3 - nfs4 filer:/export/home rw,vers=4.2
41 40 0:41 / /home/ann/local rw - ext4 /dev/sdb1 rw
42 22 0:42 / /mnt/my\040share rw - cifs //box/share rw
43 22 0:43 / /lustre rw - lustre 10.0.0.1@o2ib:/scratch rw
44 22 0:44 / /gpfs rw - gpfs gpfs0 rw
45 22 0:45 / /remote rw - fuse.sshfs ann@box:/data rw
46 22 0:46 / /beegfs rw - beegfs beegfs_nodev rw
47 22 0:47 / /ceph rw - ceph 10.0.0.2:6789:/ rw
48 22 0:48 / /mnt/c rw - 9p C:\134 rw
49 22 0:49 / /ntfs rw - fuseblk /dev/sdc1 rw
50 22 0:50 / /overlay rw - fuse.fuse-overlayfs fuse-overlayfs rw
51 22 0:51 / /mnt/smb rw - smb3 //box/other rw
52 22 0:52 / /twice rw - nfs filer:/twice rw
53 52 0:53 / /twice rw - tmpfs tmpfs rw
54 22 0:54 / /gluster rw - fuse.glusterfs box:/vol rw
a line that is none
55 22 0:55 /
"""


@pytest.mark.parametrize(
    ("path", "network"),
    [
        ("/var/a.db", None),
        ("/home/ann/a.db", "NFS"),
        ("/home", "NFS"),
        ("/homes/ann/a.db", None),
        ("/home/ann/local/a.db", None),
        ("/home/ann/locally/a.db", "NFS"),
        ("/mnt/my share/a.db", "SMB/CIFS"),
        ("/mnt/smb/a.db", "SMB/CIFS"),
        ("/mnt/a.db", None),
        ("/lustre/a.db", "Lustre"),
        ("/gpfs/a.db", "GPFS"),
        ("/remote/a.db", "sshfs"),
        ("/beegfs/a.db", "BeeGFS"),
        ("/ceph/a.db", "CephFS"),
        ("/gluster/a.db", "GlusterFS"),
        ("/mnt/c/a.db", "9p, a folder of another system"),
        ("/ntfs/a.db", None),
        ("/overlay/a.db", None),
        ("/twice/a.db", None),
    ],
)
def test_the_kind_of_the_file_system_that_a_path_is_on(path, network):
    assert mount_of(path, TABLE).network == network


def test_links_are_followed(tmp_path):
    (tmp_path / "data").symlink_to("/lustre/data")
    assert mount_of(tmp_path / "data" / "a.db", TABLE).kind == "lustre"


def test_a_table_without_sense_tells_nothing():
    assert mount_of("/a", "") is None
    assert mount_of("/a", "a b c - d\n - \n") is None


def test_this_machines_own_table_can_be_read(tmp_path):
    if not Path("/proc/self/mountinfo").exists():
        pytest.skip("not Linux")
    assert mount_of(tmp_path).point == "/" or str(tmp_path).startswith(mount_of(tmp_path).point)


def test_a_database_on_a_network_file_system_is_refused(tmp_path, monkeypatch):
    table = f"1 0 0:1 / {tmp_path} rw - nfs filer:/data rw\n"
    monkeypatch.setattr(
        "haystack.annotate.store.database.mount_of", lambda path: mount_of(path, table)
    )
    path = tmp_path / "annotations.db"
    with pytest.raises(InputError) as caught:
        Database(path)
    assert str(caught.value) == (
        f"{path}: expected a local disk, found NFS (filer:/data): SQLite would damage the "
        "annotation database there; give one on a local disk (--database "
        "/local/annotations.db), or a PostgreSQL server (--database "
        "postgresql://USER@HOST/DATABASE)"
    )
    assert list(tmp_path.iterdir()) == []


def test_where_the_table_cannot_be_read_databases_open(tmp_path, monkeypatch):
    monkeypatch.setattr(mounts, "Path", lambda *_: tmp_path / "missing")
    assert mount_of(tmp_path) is None
    Database(tmp_path / "annotations.db").close()
