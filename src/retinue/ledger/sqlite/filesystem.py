"""On which kind of file system a path lies: SQLite's write-ahead log needs one that is local to this machine."""

import os
from pathlib import Path
from typing import Final

from retinue.errors import LedgerUnavailable

__all__ = ["NETWORK", "filesystem_type", "refuse_network"]

NETWORK: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "glusterfs", "beegfs", "gpfs", "ncpfs", "davfs"}
)
"""Types whose locks and shared memory are not those of one machine. FUSE ones are looked up without their `fuse.`."""

_FUSE_NETWORK: Final = frozenset({"sshfs", "s3fs", "gcsfuse", "rclone", "davfs2"})


def filesystem_type(path: str, mountinfo: str | None = None) -> str:
    """The type of the file system that `path` (or its nearest existing parent) lies on; "" where that is unknown.

    `mountinfo` is the text of `/proc/self/mountinfo`, which is read if it is not given. Linux only.
    """
    if mountinfo is None:
        try:
            mountinfo = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
        except OSError:
            return ""
    real = os.path.realpath(path)
    best, found = -1, ""
    for line in mountinfo.splitlines():
        left, separator, right = line.partition(" - ")
        fields = left.split(" ")
        if not separator or len(fields) < 5:
            continue
        mount = _unescape(fields[4])
        inside = mount == "/" or real == mount or real.startswith(mount + "/")
        if inside and len(mount) >= best:  # a later mount on the same point hides the earlier one
            best, found = len(mount), right.split(" ", 1)[0]
    return found


def refuse_network(path: str, kind: str) -> None:
    """Raise `LedgerUnavailable` if `kind` is a network file system."""
    name = kind.removeprefix("fuse.")
    if name in NETWORK or name in _FUSE_NETWORK:
        raise LedgerUnavailable(
            f"`{path}` is on a network file system (`{kind}`), where SQLite can lose or damage data",
            code="network_filesystem",
            remedy="keep the ledger on a local disk, for example `ledger='sqlite:////var/lib/retinue/ledger.sqlite3'`",
        )


def _unescape(field: str) -> str:
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, char)
    return field
