"""What a user installs: the wheel and the sdist hold what they should, under names that are ours."""

from __future__ import annotations

import compileall
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

import tubes

ROOT = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS = PROJECT["tool"]["setuptools"]

BUILD = """
import sys, warnings, setuptools.build_meta as backend
warnings.filterwarnings("error", "(?s).*is absent from the .packages. configuration")
print(getattr(backend, sys.argv[1])(sys.argv[2]))
"""
"""A build. What setuptools warns of, it may leave out in a later version."""


def run(*command: str | Path, cwd: Path, **env: str) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, so that a build leaves nothing in it."""
    copy = tmp_path_factory.mktemp("source") / "tubes"
    ignored = shutil.ignore_patterns(
        ".git", ".venv", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis", "build", "dist", "*.db*"
    )
    shutil.copytree(ROOT, copy, ignore=ignored)
    return copy


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-c", BUILD, "build_wheel", out, cwd=source)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds nothing but the installed wheel."""
    target = tmp_path_factory.mktemp("installed")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install")
    run(*pip, "--no-deps", "--no-index", "--target", target, wheel, cwd=target)
    return target


def test_the_list_of_packages_equals_the_folders() -> None:
    folders = {package: ROOT / folder for package, folder in SETUPTOOLS["package-dir"].items()}
    found = {
        ".".join((package, *init.parent.relative_to(folder).parts))
        for package, folder in folders.items()
        for init in folder.rglob("__init__.py")
    }
    assert sorted(SETUPTOOLS["packages"]) == sorted(found)


def test_every_folder_with_python_in_it_is_a_package() -> None:
    for folder in SETUPTOOLS["package-dir"].values():
        for file in (ROOT / folder).rglob("*.py"):
            assert (file.parent / "__init__.py").exists(), file


def test_the_wheel_holds_every_module_and_typing_marker(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for package, folder in SETUPTOOLS["package-dir"].items():
        for file in (ROOT / folder).rglob("*.py"):
            place = "/".join((*package.split("."), *file.relative_to(ROOT / folder).parts))
            assert place in names
    assert {"tubes/py.typed", "tubes/drivers/py.typed", "tubes/migrations/script.py.mako"} <= names


def test_the_wheel_puts_nothing_but_tubes_into_site_packages(wheel: Path) -> None:
    """Folders called drivers and migrations would collide with everybody's."""
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"tubes"}


def test_the_wheel_carries_the_licence(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert any(name.endswith("LICENSE") for name in names)


@pytest.mark.slow
def test_the_sdist_holds_docs_tests_and_examples(source: Path, tmp_path: Path) -> None:
    run(sys.executable, "-c", BUILD, "build_sdist", tmp_path, cwd=source)
    (built,) = tmp_path.glob("*.tar.gz")
    names = {name.partition("/")[2] for name in tarfile.open(built).getnames()}
    for wanted in ("README.md", "CHANGELOG.md", "LICENSE", ".ci/run", "docs/README.md", "docs/tutorial.md"):
        assert wanted in names
    for folder in ("tubes", "drivers", "migrations", "tests", "examples", "benchmarks", "docs"):
        here = {
            path.relative_to(source).as_posix()
            for path in (source / folder).rglob("*")
            if path.is_file() and path.suffix in (".py", ".md")
        }
        assert here <= names
    assert not any("__pycache__" in name for name in names)


WORK = """
import sys, tubes, importlib.metadata
print(tubes.__file__)
with tubes.connect("sqlite:///jobs.db") as queue:
    for type in ("fifo", "fifottl", "limfifottl", "utube", "utubettl"):
        tube = queue.create_tube(type, type)
        tube.put({"type": type})
        task = tube.take(timeout=0)
        assert tube.ack(task).data == {"type": type}
print(importlib.metadata.version("tubes-queue"))
"""


def test_the_installed_wheel_works_outside_the_checkout(installed: Path, tmp_path: Path) -> None:
    file, version = run(sys.executable, "-c", WORK, cwd=tmp_path, PYTHONPATH=str(installed)).split()
    assert Path(file).is_relative_to(installed)
    assert version == PROJECT["project"]["version"]


IN_AN_ARCHIVE = """
import tubes
try:
    tubes.connect("sqlite://")
except tubes.StoreUnavailable as error:
    print(tubes.__file__, error, sep="\\n")
"""


def test_from_an_archive_no_schema_is_made_and_the_error_says_so(wheel: Path, tmp_path: Path) -> None:
    file, said = run(sys.executable, "-c", IN_AN_ARCHIVE, cwd=tmp_path, PYTHONPATH=str(wheel)).splitlines()
    assert Path(file).is_relative_to(wheel)
    assert "tubes is imported from an archive" in said


def test_without_its_source_files_the_installed_wheel_makes_a_schema(installed: Path, tmp_path: Path) -> None:
    """As cx_Freeze bundles it: compiled modules, where the source files would be."""
    bundled = shutil.copytree(installed, tmp_path / "bundled", ignore=shutil.ignore_patterns("__pycache__"))
    assert compileall.compile_dir(bundled, quiet=1, legacy=True)
    for source in bundled.rglob("*.py"):
        source.unlink()
    file, _ = run(sys.executable, "-c", WORK, cwd=tmp_path, PYTHONPATH=str(bundled)).split()
    assert file == str(bundled / "tubes" / "__init__.pyc")


def test_without_the_metadata_of_the_package_the_error_says_that_it_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when a program was bundled, or only the folder was copied: the stores are entry points."""
    monkeypatch.setattr(tubes.registry, "_found", {})
    monkeypatch.setattr(tubes.registry, "entry_points", lambda group: ())
    with pytest.raises(tubes.StoreUnavailable, match=r"the metadata of tubes-queue \(its \.dist-info\)"):
        tubes.connect("sqlite://")


def test_the_versions_agree() -> None:
    assert tubes.__version__ == PROJECT["project"]["version"]


ENTRY_POINTS = """
from importlib.metadata import distribution
points = distribution("tubes-queue").entry_points
for group in ("tubes.drivers", "tubes.stores", "console_scripts"):
    for point in points.select(group=group):
        point.load()
        print(group, point.name)
"""


@pytest.mark.slow
def test_the_installed_entry_points_all_load(installed: Path, tmp_path: Path) -> None:
    found = run(sys.executable, "-c", ENTRY_POINTS, cwd=tmp_path, PYTHONPATH=str(installed)).splitlines()
    assert sorted(found) == sorted(
        [f"tubes.drivers {name}" for name in ("fifo", "fifottl", "limfifottl", "redis", "utube", "utubettl")]
        + [f"tubes.stores {scheme}" for scheme in ("sqlite", "postgresql", "redis", "rediss", "unix")]
        + ["console_scripts tubes"]
    )


WITHOUT = """
import sys
sys.path.append(sys.argv[1])
import tubes
for url in ("redis://localhost", "postgresql+psycopg://localhost/jobs"):
    try:
        tubes.connect(url)
    except tubes.StoreUnavailable as error:
        print(error)
with tubes.connect("sqlite://") as queue:
    try:
        queue.create_tube("hot", "redis", url="redis://localhost")
    except tubes.UnknownDriver as error:
        print(error)
"""


@pytest.mark.slow
def test_a_package_that_is_not_installed_is_named_with_the_extra_that_brings_it(
    installed: Path, tmp_path: Path
) -> None:
    others = tmp_path / "others"
    others.mkdir()
    for found in Path(sysconfig.get_path("purelib")).iterdir():
        if not found.name.startswith(("redis", "psycopg", "tubes", "__editable__")):
            (others / found.name).symlink_to(found)
    at_redis, at_postgres, hosted = run(
        sys.executable, "-S", "-c", WITHOUT, others, cwd=tmp_path, PYTHONPATH=str(installed)
    ).splitlines()
    for said, package, extra in (
        (at_redis, "redis", "redis"),
        (at_postgres, "psycopg", "postgres"),
        (hosted, "redis", "redis"),
    ):
        assert f"No module named '{package}'; pip install 'tubes-queue[{extra}]'" in said


OLD = """
import importlib, sys, tubes
url, package, version = sys.argv[1:]
importlib.import_module(package).__version__ = version
try:
    tubes.connect(url)
except tubes.StoreUnavailable as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("url", "package", "version", "reason", "extra"),
    [
        ("redis://", "redis", "5.3.1", "redis-py is 5.3.1, but tubes needs 6 or newer", "redis"),
        ("postgresql://", "psycopg", "3.1.18", "psycopg is 3.1.18, but tubes needs 3.2 or newer", "postgres"),
    ],
)
def test_a_package_that_is_too_old_is_named_with_the_extra_that_brings_another(
    url: str, package: str, version: str, reason: str, extra: str, tmp_path: Path
) -> None:
    """It may have been installed without the extra, which asks for a newer one, too."""
    said = run(sys.executable, "-c", OLD, url, package, version, cwd=tmp_path)
    assert f"{reason}; pip install 'tubes-queue[{extra}]'" in said


WINDOWS = """
import os, select, signal, socket, sys, threading
for module, names in (
    (os, "register_at_fork fork geteuid fchown fchmod posix_fallocate"),
    (signal, "SIGALRM SIGCHLD SIGHUP SIGKILL SIGUSR1 SIGUSR2"),
    (select, "poll epoll"),
    (socket, "AF_UNIX"),
):
    for name in names.split():
        delattr(module, name)
sys.modules["fcntl"] = None
try:
    import tubes
except ImportError as error:
    print(error)
"""
"""What an import finds on Windows."""


def test_on_windows_the_import_says_what_is_needed(tmp_path: Path) -> None:
    assert "tubes needs Linux, or another POSIX system" in run(sys.executable, "-c", WINDOWS, cwd=tmp_path)


HEAVY = ("sqlalchemy", "alembic", "redis", "psycopg", "sqlite3", "click", "rich", "hypothesis", "pytest")

LOADED = f"import sys, tubes; print(*(name for name in {HEAVY!r} if name in sys.modules))"


def test_importing_tubes_loads_no_database_and_no_library_of_another_part(tmp_path: Path) -> None:
    assert run(sys.executable, "-c", LOADED, cwd=tmp_path).split() == []
