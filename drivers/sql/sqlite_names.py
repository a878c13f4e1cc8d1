"""Whether all who use a database file find the same log and the same locks beside it.

SQLite names its write-ahead log after the path by which it opened the file, as we do the lock file. Symbolic links are
followed. But where a file has two names of its own, those who came by the one do not see what those who came by the
other have committed: each task is taken twice, and whoever closes first is written over.
"""

from __future__ import annotations

import os
import re
import stat

from tubes.errors import StoreUnavailable

MOUNTS = "/proc/self/mountinfo"
"""All that is mounted where this process looks, as Linux tells it; see proc_pid_mountinfo(5)."""


def check_one_name(path: str, what: str, mounts: str = MOUNTS) -> None:
    """Raise StoreUnavailable for a file that has hard links, or that was mounted without its folder."""
    try:
        status = os.stat(path)
    except OSError:  # it is still to be made, or SQLite says why it cannot be
        return
    if not stat.S_ISREG(status.st_mode):
        return
    if status.st_nlink > 1:
        raise StoreUnavailable(
            f"{what} cannot be used: it has {status.st_nlink} names (hard links), and SQLite keeps a log for each, "
            "which those who use another do not see; leave it one, and use symbolic links"
        )
    if _is_mounted(path, mounts):
        raise StoreUnavailable(
            f"{what} cannot be used: it is mounted by itself, and its log would lie where others do not see it; "
            "mount its folder"
        )


def _is_mounted(path: str, mounts: str) -> bool:
    name = re.sub(rb"[ \t\n\\]", lambda found: b"\\%03o" % ord(found[0]), os.fsencode(path))
    try:
        with open(mounts, "rb") as lines:
            return any(line.split(b" ", 5)[4] == name for line in lines)
    except OSError:  # no Linux
        return False
