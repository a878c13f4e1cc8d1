"""What a database file is mounted on, by lists like the kernel's: only root could mount such things."""

from __future__ import annotations

import importlib
import os
import warnings
from pathlib import Path

import pytest
from tubes.drivers.sql.sqlite_files import check_one_name, warn_of_other_hosts

import tubes


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The kernel's list of mounts, for the test to write: one line for each file system."""
    mounts = tmp_path / "mountinfo"
    names = importlib.import_module("tubes.drivers.sql.sqlite_files")
    monkeypatch.setattr(names, "MOUNTS", str(mounts))
    return mounts


def line(folder: Path, kind: str, *, device: int = 0) -> str:
    """Return the line of a file system, by default of the one that the folder really is on."""
    number = device or folder.stat().st_dev
    return f"36 35 {os.major(number)}:{os.minor(number)} / {folder} rw shared:1 - {kind} server:/x rw\n"


def test_a_file_that_is_mounted_without_its_folder_is_refused(tmp_path: Path, mounted: Path) -> None:
    """A container was given one file by itself, and another in its folder."""
    alone, inside = tmp_path / "a b.db", tmp_path / "folder" / "jobs.db"
    inside.parent.mkdir()
    alone.touch()
    inside.touch()
    mounted.write_text(
        "801 800 0:33 / / rw,relatime - overlay overlay rw\n"
        f"802 801 8:1 /home/me/jobs.db {tmp_path}/a\\040b.db rw,relatime - ext4 /dev/sda1 rw\n"
        f"803 801 8:1 /home/me {inside.parent} rw,relatime - ext4 /dev/sda1 rw\n"
    )
    with pytest.raises(tubes.StoreUnavailable, match="mount its folder"):
        check_one_name(str(alone), "it")
    check_one_name(str(inside), "it")
    mounted.unlink()
    check_one_name(str(alone), "it")


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "9p", "fuse.sshfs"])
def test_a_disk_that_other_hosts_may_use_is_warned_of(tmp_path: Path, mounted: Path, kind: str) -> None:
    """The warning points at the program's line that connects, and comes before there is a file."""
    mounted.write_text(line(tmp_path, "ext4", device=1) + line(tmp_path, kind))
    with pytest.warns(tubes.TubesWarning, match=rf"jobs\.db is on {kind}: .*PostgreSQL or Redis") as seen:
        tubes.connect(f"sqlite:///{tmp_path}/jobs.db").close()
    assert [warning.filename for warning in seen] == [__file__]
    (tmp_path / "jobs.db").unlink()
    with warnings.catch_warnings(), pytest.raises(tubes.TubesWarning):
        warnings.simplefilter("error")
        tubes.connect(f"sqlite:///{tmp_path}/jobs.db")
    assert not (tmp_path / "jobs.db").exists()


@pytest.mark.parametrize("kind", ["ext4", "overlay", "tmpfs", "fuseblk", "fuse.gocryptfs"])
def test_a_local_disk_is_not_warned_of(tmp_path: Path, mounted: Path, kind: str) -> None:
    mounted.write_text(line(tmp_path, "nfs4", device=1) + line(tmp_path, kind))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_other_hosts(str(tmp_path / "jobs.db"), "it")
        mounted.unlink()
        warn_of_other_hosts(str(tmp_path / "jobs.db"), "it")
        warn_of_other_hosts(str(tmp_path / "nowhere" / "jobs.db"), "it")
