"""Redis: a replica replaces its primary, behind an address that leads to either, by Sentinels, or in a Cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import TypeVar

import pytest
import redis
from faults.harness import Connect, ended, eventually, waiting
from faults.proxy import Proxy
from faults.serving import Load, put_when_it_can
from redis_servers import RedisCluster, RedisServer, a_sentinel, on_a_port

import tubes
from tubes.doctor import Doctor
from tubes.testing.suite import take
from tubes.waiting import room

T = TypeVar("T")

pytestmark = pytest.mark.slow

DURABILITIES = ["normal", pytest.param("full", marks=pytest.mark.redis(since="Redis 7.2"))]


class Pair:
    """A primary and its replica, and an address that leads to the one that is the primary."""

    def __init__(self, primary: RedisServer, replica: RedisServer) -> None:
        self.primary, self.replica = primary, replica
        replica.follow(primary)
        self._proxy = Proxy(primary.folder / "redis.sock")
        self.url = f"redis://127.0.0.1:{self._proxy.port}?dead_after=3"

    def hand_over(self, *, is_cut: bool) -> None:
        """Have the primary hand over; then the address leads to the other. ``is_cut``: connections end then."""
        self.primary.wait_until(self._has_replica)
        self.primary.command("FAILOVER")
        self.primary.wait_until(lambda: self.replica.is_primary() and not self.primary.is_primary())
        self._change(is_cut)
        self.replica.wait_until(self.replica.is_in_sync)

    def crash(self) -> None:
        """Kill the primary, and promote the replica. The killed one comes back as a replica of that."""
        self.primary.stop("immediate")
        self.replica.command("REPLICAOF", "NO", "ONE")
        self._change(is_cut=False)
        self.replica.start()
        self.replica.follow(self.primary)

    def wait_for_replica(self) -> None:
        """Wait until the replica has what has been done so far, if only processes at rest are connected."""
        self.primary.wait_until(
            lambda: self._offset(self.primary, "master") == self._offset(self.replica, "slave")
        )

    def close(self) -> None:
        """Lead nobody anywhere any more."""
        self._proxy.close()

    def _change(self, is_cut: bool) -> None:
        self.primary, self.replica = self.replica, self.primary
        self._proxy.lead_to(self.primary.folder / "redis.sock", is_cut=is_cut)

    def _has_replica(self) -> bool:
        """Whether the primary counts the other as its replica, to which it may hand over."""
        return bool(self.primary.command("INFO", "replication").get("slave0", {}).get("state") == "online")

    def _offset(self, server: RedisServer, role: str) -> int:
        return int(server.command("INFO", "replication")[f"{role}_repl_offset"])


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Two private servers, which answer a write once it is on disk."""
    with ExitStack() as closing:
        servers = []
        for _ in range(2):
            servers.append(on_a_port("always"))
            closing.callback(servers[-1].close)
        made = Pair(*servers)
        closing.callback(made.close)
        yield made


@pytest.fixture
def url(pair: Pair) -> str:
    """Their address."""
    return pair.url


class Bystanders:
    """A task that is held, a consumer and a put that wait: a failover must leave them as they are."""

    def __init__(self, queue: tubes.Queue) -> None:
        self._held = queue.create_tube("held", "fifo")
        self._held.put("held")
        self._task = take(self._held)
        self._awaited = queue.create_tube("awaited", "fifo")
        self._taker, self._got = waiting(self._awaited)
        self._bounded = queue.create_tube("bounded", "limfifottl", capacity=1)
        self._bounded.put("first")
        self._putter = threading.Thread(target=self._put_when_there_is_room, daemon=True)
        self._putter.start()
        eventually(lambda: queue.store.waiters.count(room(self._bounded.record.id)))

    def _put_when_there_is_room(self) -> None:
        """A put whose outcome is unknown was not done: there is no room yet."""
        is_stored = False
        while not is_stored:
            with suppress(tubes.OutcomeUnknown):
                is_stored = self._bounded.put("second", timeout=600).data == "second"

    def check(self) -> None:
        """The task can be acked, the consumer is called for a task, and the put for room."""
        assert not self._got and self._putter.is_alive()
        assert when_it_can(partial(self._held.ack, self._task)).data == "held"
        put_when_it_can(self._awaited, "came")
        ended(self._taker)
        assert [task and task.data for task in self._got] == ["came"]
        first = when_it_can(partial(self._bounded.take, timeout=5))
        assert first is not None and first.data == "first"
        when_it_can(partial(self._bounded.ack, first))
        ended(self._putter)


def when_it_can(call: Callable[[], T]) -> T:
    """Call until the server is not away: what it refuses is not done."""
    done: list[T] = []

    def is_done() -> bool:
        try:
            done.append(call())
        except tubes.StoreUnavailable:
            return False
        return True

    eventually(is_done)
    return done[0]


def more_acked(load: Load) -> None:
    """Wait until tasks go through."""
    before = len(load.acked)
    eventually(lambda: len(load.acked) > before + 20)


def led_through(
    connect: Callable[[], tubes.Queue], type: str, ttr: float, changes: Sequence[Callable[[], None]]
) -> Load:
    """A load that is over, and went on before each of these changes and after the last; so did bystanders."""
    with connect() as queue:
        queue.create_tube("jobs", type, ttr=ttr)
        bystanders = Bystanders(queue)
        with Load([connect(), connect()]) as load:
            for change in changes:
                more_acked(load)
                change()
            more_acked(load)
        bystanders.check()
    return load


def check_nothing_is_stuck(connect: Connect) -> None:
    """All that is left can be taken and acked; the doctor finds nothing."""
    with connect() as queue:
        tube = queue.tube.jobs

        def drained() -> bool:
            while tasks := tube.take_many(100, timeout=0.1):
                tube.ack_many(tasks)
            return tube.statistics()["tasks"]["total"] == 0

        eventually(drained)
        assert [*Doctor(queue, deep=True).examine()] == []
        eventually(lambda: len(queue.store.known_sessions(None)) == 1)


@pytest.mark.usefixtures("no_floor")
@pytest.mark.parametrize("is_cut", [False, True], ids=["kept", "cut"])
@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_primary_that_hands_over_behind_an_address_loses_and_doubles_nothing(
    connect: Connect, pair: Pair, durability: str, is_cut: bool
) -> None:
    """Connections to the former primary stay, or are cut. Later it is the primary again."""
    queue, queues = connect(), [connect(durability=durability), connect(durability=durability)]
    queue.create_tube("jobs", "utubettl", ttr=600)
    bystanders = Bystanders(queue)
    with Load(queues) as load:
        for _ in range(2):
            more_acked(load)
            pair.hand_over(is_cut=is_cut)
        more_acked(load)
    bystanders.check()
    load.settle(connect)
    assert set(load.errors) <= {
        "StoreUnavailable",
        *(["OutcomeUnknown"] if is_cut or durability == "full" else []),
    }
    queue.close()
    check_nothing_is_stuck(connect)


@pytest.mark.usefixtures("no_floor")
@pytest.mark.parametrize("durability", DURABILITIES)
def test_after_a_crash_of_the_primary_all_go_on_at_its_replica_and_nothing_is_stuck(
    connect: Connect, pair: Pair, durability: str
) -> None:
    """It comes back as a replica, and replaces the other one when that crashes.

    A task whose ack is lost is held by a session that does not know it, until its ttr is over.
    """
    queue, queues = connect(), [connect(durability=durability), connect(durability=durability)]
    queue.create_tube("jobs", "utubettl", ttr=2)
    bystanders = Bystanders(queue)
    pair.wait_for_replica()
    with Load(queues) as load:
        for _ in range(2):
            more_acked(load)
            pair.crash()
        more_acked(load)
    bystanders.check()
    assert set(load.errors) <= {"StoreUnavailable", "OutcomeUnknown"}
    queue.close()
    check_nothing_is_stuck(connect)


# By Sentinels


class Watched:
    """A primary and its replica, and three Sentinels, two of which must agree that the primary is down."""

    NAME = "Jobs"

    def __init__(self, servers: list[RedisServer], sentinels: list[RedisServer]) -> None:
        self._servers = servers
        self._sentinel = sentinels[0]
        addresses = ",".join(f"127.0.0.1:{each.port}" for each in sentinels)
        self.connect = partial(
            tubes.connect, f"redis://{self.NAME}/0?sentinel={addresses}&dead_after=3", busy_timeout=60
        )
        self._sentinel.wait_until(self._knows_all, look_every=0.05)

    def fail_over(self) -> None:
        """Have the replica promoted."""
        _, replica = self._in_order()
        self._sentinel.wait_until(self._begins, look_every=0.05)
        self._wait_for(replica)

    def crash(self) -> None:
        """Kill the primary, which comes back as a replica."""
        primary, replica = self._in_order()
        primary.stop("immediate")
        self._sentinel.wait_until(lambda: self._in_order()[0] is replica)
        primary.start()
        self._wait_for(replica)

    def _in_order(self) -> list[RedisServer]:
        """The primary and the replica, as Sentinels see it."""
        _, port = self._sentinel.command("SENTINEL GET-MASTER-ADDR-BY-NAME", self.NAME)
        return sorted(self._servers, key=lambda each: each.port != port)

    def _wait_for(self, promoted: RedisServer) -> None:
        """Wait until that one is the primary, and Sentinels have seen to it that the other follows it."""

        def is_done() -> bool:
            primary, replica = self._in_order()
            with suppress(
                redis.ConnectionError
            ):  # Sentinels end all connections to whom they give a new role
                return primary is promoted and replica.is_in_sync()
            return False

        self._sentinel.wait_until(is_done, look_every=0.05)

    def _knows_all(self) -> bool:
        others = self._sentinel.command("SENTINEL SENTINELS", self.NAME)
        return len(others) == 2 and bool(self._sentinel.command("SENTINEL SLAVES", self.NAME))

    def _begins(self) -> bool:
        """Whether they accept it: not while they are at the last one, or wait to see what came of it."""
        try:
            return bool(self._sentinel.command("SENTINEL FAILOVER", self.NAME))
        except redis.ResponseError:
            return False


@pytest.fixture
def watched() -> Iterator[Watched]:
    """Five private servers."""
    with ExitStack() as closing:
        servers: list[RedisServer] = []
        for _ in range(2):
            servers.append(on_a_port("always"))
            closing.callback(servers[-1].close)
        primary, replica = servers
        replica.follow(primary)
        sentinels = []
        for _ in range(3):
            sentinels.append(a_sentinel(Watched.NAME, primary.port, quorum=2))
            closing.callback(sentinels[-1].close)
        yield Watched(servers, sentinels)


@pytest.mark.usefixtures("no_floor")
def test_where_sentinels_tell_calls_wait_for_the_next_primary(watched: Watched) -> None:
    """None is refused, but of those that were under way some outcomes are unknown. Nothing is stuck in the end."""
    connect = watched.connect
    load = led_through(connect, "fifottl", 2, [watched.fail_over, watched.crash])
    assert set(load.errors) <= {"OutcomeUnknown"}
    check_nothing_is_stuck(connect)


# In a Cluster


class Replicated:
    """A Cluster in which each of the three masters has a replica. A second's silence counts as a node's end."""

    def __init__(self, cluster: RedisCluster, replicas: list[RedisServer]) -> None:
        self.pairs = [*zip(cluster.nodes, replicas, strict=True)]
        """A master and its replica each, in this or the other order."""
        self.connect = partial(tubes.connect, f"{cluster.url}?dead_after=3")
        for node in (*cluster.nodes, *replicas):
            node.command("CONFIG SET", "cluster-node-timeout", 1000)

    def hand_over(self, pair: tuple[RedisServer, RedisServer]) -> None:
        """Have the replica take over in good order."""
        master, replica = in_order(pair)
        replica.command("CLUSTER FAILOVER")
        replica.wait_until(replica.is_primary)
        master.wait_until(master.is_in_sync)

    def crash(self, pair: tuple[RedisServer, RedisServer]) -> None:
        """Kill the master; the Cluster elects the replica. The killed one comes back as a replica of that."""
        master, replica = in_order(pair)
        master.stop("immediate")
        replica.wait_until(replica.is_primary)
        master.start()
        master.wait_until(master.is_in_sync)


def in_order(pair: tuple[RedisServer, RedisServer]) -> tuple[RedisServer, RedisServer]:
    """The one that is the master now, and then the other."""
    one, other = pair
    return (one, other) if one.is_primary() else (other, one)


@pytest.fixture
def replicated() -> Iterator[Replicated]:
    """A private one."""
    with ExitStack() as closing:
        cluster = RedisCluster()
        closing.callback(cluster.close)
        replicas = cluster.add_replicas()
        for replica in replicas:
            closing.callback(replica.close)
        yield Replicated(cluster, replicas)


@pytest.mark.usefixtures("no_floor")
def test_nodes_of_a_cluster_that_hand_over_under_load_disturb_nobody(replicated: Replicated) -> None:
    """Each of them, there and back again. No call fails."""
    connect = replicated.connect
    changes = [partial(replicated.hand_over, pair) for pair in replicated.pairs * 2]
    load = led_through(connect, "utubettl", 600, changes)
    load.settle(connect)
    assert not load.errors
    check_nothing_is_stuck(connect)


@pytest.mark.usefixtures("no_floor")
def test_after_crashes_of_a_cluster_s_nodes_all_go_on_at_those_that_are_elected(
    replicated: Replicated,
) -> None:
    """Each of them, one after the other, and back again; nothing is stuck in the end."""
    connect = replicated.connect
    steps = (replicated.crash, replicated.hand_over)
    changes = [partial(step, pair) for step in steps for pair in replicated.pairs]
    load = led_through(connect, "utubettl", 2, changes)
    assert set(load.errors) <= {"StoreUnavailable", "OutcomeUnknown"}
    check_nothing_is_stuck(connect)
