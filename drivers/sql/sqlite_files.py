"""Checks a database file before it is opened: who may use it, and what lies beside it.

All its users must find the same log and the same locks there. SQLite names its write-ahead log after the path
by which it opened the file, as we do the lock file. Symbolic links are resolved first. But if a file has two
names of its own, processes that use one do not see what those that use the other have committed: each task is
taken twice, and the commits of whoever closes first are overwritten.
"""

from __future__ import annotations

import os
import re
import sqlite3
import stat
import warnings

from tubes.errors import StoreUnavailable, TubesWarning

from .sqlite_errors import base_code

MOUNTS = "/proc/self/mountinfo"
"""All mounts that this process sees, as Linux lists them; see proc_pid_mountinfo(5)."""

OF_SEVERAL_HOSTS = {
    b"9p", b"afs", b"beegfs", b"ceph", b"cifs", b"gfs2", b"gpfs", b"lustre", b"nfs", b"nfs4", b"ocfs2", b"smb3",
    b"vboxsf", b"virtiofs", b"fuse.ceph-fuse", b"fuse.gcsfuse", b"fuse.glusterfs", b"fuse.juicefs", b"fuse.rclone",
    b"fuse.s3fs", b"fuse.sshfs", b"fuse.vmhgfs-fuse",
}  # fmt: skip
"""File systems that other hosts may have mounted as well, or that another kernel serves."""


def check_file(path: str, what: str) -> None:
    """Raise StoreUnavailable for a file that must not be opened."""
    check_one_name(path, what)
    check_beside(path, what)
    check_writable(path, what)


def check_one_name(path: str, what: str) -> None:
    """Raise StoreUnavailable for a file that has hard links, or that was mounted without its folder."""
    try:
        status = os.stat(path)
    except OSError:  # it is not made yet, or SQLite says why it cannot be
        return
    if not stat.S_ISREG(status.st_mode):
        return
    if status.st_nlink > 1:
        raise StoreUnavailable(
            f"{what} cannot be used: it has {status.st_nlink} names (hard links), and SQLite keeps a log for each, "
            "unseen by users of the others; keep one name, and use symbolic links"
        )
    if _is_mounted(path):
        raise StoreUnavailable(
            f"{what} cannot be used: it is mounted without its folder, so others would not see its log; "
            "mount its folder"
        )


def check_beside(path: str, what: str) -> None:
    """Raise StoreUnavailable if one of SQLite's files beside a database is a FIFO or has a second name.

    SQLite follows no symbolic link there. But it would wait at a FIFO for ever, deaf to signals, and write into
    whatever file else has that name, for anybody with write access to the folder.
    """
    for file in (f"{path}-{kind}" for kind in ("wal", "shm", "journal")):
        try:
            status = os.lstat(file)
        except OSError:  # it is not there, or SQLite says why it cannot be used
            continue
        if stat.S_ISFIFO(status.st_mode) or (stat.S_ISREG(status.st_mode) and status.st_nlink > 1):
            raise StoreUnavailable(f"{what} cannot be used: {file} is a FIFO, or has a hard link")


def check_writable(path: str, what: str) -> None:
    """Raise StoreUnavailable for a file that this user may not write, before anything is made beside it.

    The files beside it would get its permissions and be this user's. They would keep out those who may write
    to it, now or later: SQLite leaves its own behind if it cannot write, and nobody would think of the lock
    file.
    """
    if os.path.exists(path) and not os.access(path, os.W_OK, effective_ids=True):
        raise StoreUnavailable(f"{what} cannot be used: it is read-only for this user")
    folder = os.path.dirname(path)
    is_complete = all(map(os.path.exists, (path, f"{path}-wal", f"{path}-shm")))
    if not is_complete and os.path.isdir(folder):  # SQLite would say that the file is read-only
        if not os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
            raise StoreUnavailable(f"{what} cannot be used: its folder is read-only for this user")


def is_missing(path: str) -> bool:
    """Tell whether there is no such file; one that cannot be looked at may be there."""
    try:
        os.stat(path)
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    return False


def is_kept_out(error: StoreUnavailable) -> bool:
    """Tell whether a file could not be opened, or only for reading."""
    cause = error.__cause__
    if isinstance(cause, sqlite3.Error):
        return base_code(cause) in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
    return isinstance(cause, PermissionError)


def kept_from(path: str | None, cause: BaseException | None) -> str | None:
    """The file beside the database that this user may not use; SQLite does not name it."""
    beside = [f"{path}-{kind}" for kind in ("wal", "shm", "journal")]
    if isinstance(cause, PermissionError) and cause.filename is not None:
        beside.append(cause.filename)
    for file in beside:
        if os.path.exists(file) and not os.access(file, os.R_OK | os.W_OK, effective_ids=True):
            return file
    return None


def _is_mounted(path: str) -> bool:
    name = re.sub(rb"[ \t\n\\]", lambda found: b"\\%03o" % ord(found[0]), os.fsencode(path))
    return any(mount[4] == name for mount in _mounts())


def warn_of_other_hosts(path: str, what: str) -> None:
    """Warn of a database on a file system that hosts share: they do not see each other's locks and log."""
    try:
        device = os.stat(os.path.dirname(path)).st_dev
    except OSError:  # SQLite says why it cannot be used
        return
    kind = _file_system(b"%d:%d" % (os.major(device), os.minor(device)))
    if kind in OF_SEVERAL_HOSTS:
        warnings.warn(
            f"{what} is on {kind.decode()}: if processes on two hosts use it, the file gets damaged, "
            "and a task may be taken twice; put it on a local disk, or use PostgreSQL or Redis",
            TubesWarning,
            stacklevel=4,
        )


def _file_system(device: bytes) -> bytes:
    """The kind of the file system with this number, empty if that is not known."""
    return next((mount[mount.index(b"-") + 1] for mount in _mounts() if mount[2] == device), b"")


def _mounts() -> list[list[bytes]]:
    """The words of each line of the list of mounts; nothing if the system has none."""
    try:
        with open(MOUNTS, "rb") as lines:
            return [line.split() for line in lines]
    except OSError:  # no Linux
        return []
