"""A file that is mounted without its folder, as the kernel tells of it: only root could mount one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tubes.drivers.sql.sqlite_names import check_one_name

import tubes


def test_a_file_that_is_mounted_without_its_folder_is_refused(tmp_path: Path) -> None:
    """A container was given a file alone, and a folder with another."""
    alone, inside = tmp_path / "a b.db", tmp_path / "folder" / "jobs.db"
    inside.parent.mkdir()
    alone.touch()
    inside.touch()
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "801 800 0:33 / / rw,relatime - overlay overlay rw\n"
        f"802 801 8:1 /home/me/jobs.db {tmp_path}/a\\040b.db rw,relatime - ext4 /dev/sda1 rw\n"
        f"803 801 8:1 /home/me {inside.parent} rw,relatime - ext4 /dev/sda1 rw\n"
    )
    with pytest.raises(tubes.StoreUnavailable, match="mount its folder"):
        check_one_name(str(alone), "it", str(mounts))
    check_one_name(str(inside), "it", str(mounts))
    check_one_name(str(alone), "it", str(tmp_path / "none"))
