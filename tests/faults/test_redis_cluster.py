"""A Redis Cluster: tubes on all nodes, slots that move under load, nodes that end and come back."""

from __future__ import annotations

import asyncio
import importlib
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, cast

import pytest
import redis
from faults.harness import HOLDER, Connect, begin, ended, eventually, finish, heard, waiting
from faults.serving import Load
from redis.crc import key_slot
from redis_servers import RedisCluster, RedisServer

import tubes
import tubes.aio
from tubes.testing.suite import take

scripts: Any = importlib.import_module("tubes.drivers.redis.scripts")


@pytest.fixture
def cluster() -> Iterator[RedisCluster]:
    """A Cluster whose slots a test may move, and whose nodes it may stop; answered writes are on disk."""
    made = RedisCluster(fsync="always")
    yield made
    made.close()


@pytest.fixture
def url(cluster: RedisCluster) -> str:
    """A queue there; a process is taken for dead after a second."""
    return f"{cluster.url}?dead_after=1"


SESSIONS = int(key_slot(b"{tubes}"))
"""The slot of the catalogue and the sessions."""


def slot_of(tube: tubes.Tube, namespace: str = "tubes") -> int:
    return int(key_slot(f"{{{namespace}:{tube.record.id}}}".encode()))


def owner_of(cluster: RedisCluster, slot: int) -> RedisServer:
    """The node that says of itself that it has the slot."""
    for node in cluster.nodes:
        for first, last, (_, port, *_), *_ in node.command("CLUSTER SLOTS"):
            if first <= slot <= last and port == node.port:
                return node
    raise AssertionError(f"nobody has slot {slot}")


def is_at_work(node: RedisServer) -> bool:
    return bool(node.command("CLUSTER INFO")["cluster_state"] == "ok")


def master_of_all(cluster: RedisCluster) -> tuple[RedisServer, RedisServer]:
    """A node that has all slots, and one that has none."""
    master, other, _ = cluster.nodes
    for node in cluster.nodes:
        node.command("CONFIG SET", "cluster-node-timeout", 500)
        node.command("CONFIG SET", "repl-diskless-sync-delay", 0)
        node.command("CLUSTER RESET")
    master.command("CLUSTER ADDSLOTS", *range(cluster.SLOTS))
    master.command("CLUSTER MEET", "127.0.0.1", other.port)
    for node in (master, other):
        node.wait_until(partial(is_at_work, node))
    return master, other


class Move:
    """A slot on its way to another node, step by step, as ``redis-cli --cluster reshard`` does it."""

    def __init__(self, cluster: RedisCluster, slot: int) -> None:
        self._nodes = cluster.nodes
        self._slot = slot
        self._from = owner_of(cluster, slot)
        self.to = next(node for node in cluster.nodes if node is not self._from)
        self._to_id = self.to.command("CLUSTER MYID").decode()
        self.to.command("CLUSTER SETSLOT", slot, "IMPORTING", self._from.command("CLUSTER MYID"))
        self._from.command("CLUSTER SETSLOT", slot, "MIGRATING", self._to_id)

    def carry(self, most: int = 100) -> int:
        """Move some of its keys."""
        keys = self._from.command("CLUSTER GETKEYSINSLOT", self._slot, most)
        if keys:
            self._from.command("MIGRATE", "127.0.0.1", self.to.port, "", 0, 5000, "KEYS", *keys)
        return len(keys)

    def finish(self) -> None:
        """Move all the rest, and tell every node whose the slot is now: first its new owner."""
        while self.carry():
            pass
        for node in (self.to, *self._nodes):
            node.command("CLUSTER SETSLOT", self._slot, "NODE", self._to_id)


def test_the_tubes_of_a_queue_lie_on_all_nodes(redis_cluster: str) -> None:
    """And what a dead process holds in any of them is rescued."""
    url = f"{redis_cluster}?dead_after=1"
    with tubes.connect(url, namespace="spread") as queue, tubes.connect(url, namespace="spread") as other:
        made = [queue.create_tube(f"tube_{number}", "utube") for number in range(40)]
        with redis.RedisCluster.from_url(redis_cluster) as client:
            owners = {client.nodes_manager.get_node_from_slot(slot_of(tube, "spread")).name for tube in made}
        assert len(owners) == 3
        for tube in made:
            tube.put(tube.name)
            task = other.tube[tube.name].take(timeout=0)
            assert task is not None and task.data == tube.name
        store: Any = other.store
        store._hub.listener.remove_beat(store._beat)  # it dies
        for tube in made:
            task = tube.take(timeout=20)
            assert task is not None and task.attempts == 2
            tube.ack(task)
            tube.drop()


def test_slots_that_move_under_load_lose_and_double_nothing(connect: Connect, cluster: RedisCluster) -> None:
    """The slots of the tube and of the sessions move. Calls wait while the keys are on their way."""
    queues = [connect(), connect()]
    tube = queues[0].create_tube("jobs", "utubettl", ttr=60)
    with Load(queues) as load:
        eventually(lambda: len(load.acked) > 20)
        for slot in (slot_of(tube), SESSIONS, slot_of(tube)):
            move = Move(cluster, slot)
            move.carry(3)
            time.sleep(0.05)
            move.finish()
            assert owner_of(cluster, slot) is move.to
            before = len(load.acked)
            eventually(lambda n=before: len(load.acked) > n + 20)  # type: ignore[misc]
    load.settle(connect)
    assert not load.errors


@pytest.mark.slow
def test_a_tube_on_its_way_is_waited_for(connect: Connect, cluster: RedisCluster) -> None:
    """For busy_timeout; then a put fails, and was not done. A waiting consumer is served afterwards."""
    queue, hasty = connect(), connect(busy_timeout=0.2, sweep=False)
    tube = queue.create_tube("jobs", "fifo")
    thread, got = waiting(tube)
    move = Move(cluster, slot_of(tube))
    move.carry()
    with pytest.raises(tubes.StoreUnavailable, match="cannot be used"):
        hasty.tube.jobs.put("never")
    patient = threading.Thread(target=lambda: tube.put("came"))
    patient.start()
    assert not got
    move.finish()
    ended(patient)
    ended(thread)
    assert [task and task.data for task in got] == ["came"]
    assert tube.statistics()["tasks"]["total"] == 1


def named(number: int) -> dict[str, Any]:
    return {"utube": str(number)}


@pytest.mark.slow
@pytest.mark.parametrize("type", ["fifo", "redis"])
def test_a_script_does_not_end_in_the_middle_since_the_slot_is_moved(
    cluster: RedisCluster, type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that a script empties then counts as one that has left. A node runs no script on a key it lacks.

    So this matters when all keys exist that a tube of its type may have.
    """
    monkeypatch.setattr("tubes.drivers.redis.hosted.PATIENCE", 0.2)
    is_hosted = type == "redis"
    options: dict[str, Any] = {"url": cluster.url, "capacity": 9} if is_hosted else {}
    store = "sqlite://" if is_hosted else cluster.url
    with tubes.connect(store, sweep=False, busy_timeout=0.2) as queue:
        tube = queue.create_tube("jobs", type, **options)
        for number in range(3):
            tube.put(number, **(named(number) if is_hosted else {}))
        tube.bury(3)
        queue.flush_counts()
        held = take(tube)
        namespace, number = (
            ("tubes_hosted", tube.record.options["number"]) if is_hosted else ("tubes", tube.record.id)
        )
        slot = int(key_slot(f"{{{namespace}:{number}}}".encode()))
        node = owner_of(cluster, slot)
        for name in scripts.TUBE_KEYS[: None if is_hosted else 7]:
            key = f"{{{namespace}:{number}}}:{name}"
            if name in ("bell", "room"):
                node.command("LPUSH", key, 1)
            elif not node.command("EXISTS", key):
                node.command("ZADD", key, 9e15, "somebody")
        move = Move(cluster, slot)
        with pytest.raises(tubes.StoreUnavailable):
            tube.take(timeout=0, ack=held)
        move.finish()
        task = tube.take(timeout=0, ack=held)
        assert task is not None and task.data == 1


@pytest.mark.slow
def test_a_node_that_has_left_the_cluster_is_asked_no_more(connect: Connect, cluster: RedisCluster) -> None:
    """Nor does a client that asked nothing there meanwhile believe that the node still has the tube."""
    queue = connect(sweep=False)
    made = (queue.create_tube(f"tube_{number}", "fifo") for number in range(99))
    tube = next(tube for tube in made if owner_of(cluster, slot_of(tube)) is not owner_of(cluster, SESSIONS))
    tube.put("x")
    queue.flush_counts()
    left = owner_of(cluster, slot_of(tube))
    Move(cluster, slot_of(tube)).finish()
    for node in cluster.nodes:
        node.command("CONFIG SET", "cluster-require-full-coverage", "no")
        if node is not left:
            node.command("CLUSTER FORGET", left.command("CLUSTER MYID"))
    left.command("CLUSTER RESET")
    task = tube.take(timeout=0)
    assert task is not None and task.data == "x"


@pytest.mark.slow
def test_a_node_that_knows_of_nothing_any_more_is_not_believed(cluster: RedisCluster) -> None:
    """The URL names it, and it alone can be asked while the other node does not answer."""
    master, other = master_of_all(cluster)
    with tubes.connect(other.url, sweep=False, busy_timeout=0.1) as queue:
        master.command("CLUSTER FORGET", other.command("CLUSTER MYID"))
        other.command("CLUSTER RESET")
        with master.hung():
            with pytest.raises(tubes.StoreUnavailable):
                queue.tubes()
        assert queue.tubes() == []


@pytest.mark.slow
def test_a_replica_is_found_that_has_taken_over_from_the_only_master(
    cluster: RedisCluster,
) -> None:
    master, replica = master_of_all(cluster)
    replica.command("CLUSTER REPLICATE", master.command("CLUSTER MYID"))
    master.wait_until(lambda: len(master.command("CLUSTER SLOTS")[0]) == 4)
    replica.wait_until(lambda: replica.command("INFO", "replication")["master_link_status"] == "up")
    with tubes.connect(master.url, sweep=False, busy_timeout=0.1) as queue:
        queue.create_tube("jobs", "fifo").put("x")
        replica.wait_until(lambda: replica.command("DBSIZE") == master.command("DBSIZE"))
        master.stop("immediate")
        replica.command("CLUSTER FAILOVER TAKEOVER")
        replica.wait_until(lambda: replica.command("INFO", "replication")["role"] == "master")
        task = queue.tube.jobs.take(timeout=10)
        assert task is not None and task.data == "x"


@pytest.mark.slow
def test_a_tube_whose_node_is_away_is_not_made(cluster: RedisCluster) -> None:
    away = next(node for node in cluster.nodes if node is not owner_of(cluster, SESSIONS))
    with tubes.connect(cluster.url, sweep=False, busy_timeout=0.1) as queue:
        with away.hung():
            names = iter(f"tube_{number}" for number in range(99))
            with pytest.raises(tubes.StoreUnavailable):
                for name in names:
                    queue.create_tube(name, "fifo")
            assert name not in queue.tubes()
        queue.create_tube(name, "fifo").put("x")


@pytest.mark.slow
def test_a_node_that_hangs_leaves_out_no_tube_of_type_redis_of_another(
    cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tubes.drivers.redis.hosted.PATIENCE", 0.2)
    away = next(n for n in cluster.nodes if n is not owner_of(cluster, int(key_slot(b"{tubes_hosted}"))))
    with tubes.connect("sqlite://", sweep=False) as queue:
        made = [queue.create_tube(f"tube_{number}", "redis", url=cluster.url) for number in range(12)]

        def is_away(tube: tubes.Tube) -> bool:
            slot = int(key_slot(f"{{tubes_hosted:{tube.record.options['number']}}}".encode()))
            return owner_of(cluster, slot) is away

        there = [tube for tube in made if is_away(tube)]
        with away.hung():
            with pytest.raises(tubes.StoreError):
                there[0].put("x")
            began = time.monotonic()
            assert queue.statistics().keys() == {tube.name for tube in made if tube not in there}
            assert time.monotonic() - began < 1  # waiting for an answer would take 1.2 s


@pytest.mark.slow
def test_a_tube_whose_node_goes_away_while_it_is_made_stays_for_who_has_opened_it(
    connect: Connect, cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, other = connect(sweep=False, busy_timeout=0.1), connect(sweep=False)
    run_on = queue.store._run_on  # type: ignore[attr-defined]

    def run(tube: int, script: Any, *given: Any) -> Any:
        if script.name != "open":
            return run_on(tube, script, *given)
        try:
            with owner_of(cluster, int(key_slot(f"{{tubes:{tube}}}".encode()))).hung():
                return run_on(tube, script, *given)
        finally:
            other.tube.jobs.put("x")

    monkeypatch.setattr(queue.store, "_run_on", run)
    with pytest.raises(tubes.StoreUnavailable):
        queue.create_tube("jobs", "fifo")
    monkeypatch.undo()
    task = queue.create_tube("jobs", "fifo", if_not_exists=True).take(timeout=0)
    assert task is not None and task.data == "x"


@pytest.mark.parametrize("verb", ["put", "take"])
def test_a_tube_whose_node_was_away_when_it_was_opened_is_made_anew_by_its_first_call(
    connect: Connect, cluster: RedisCluster, verb: str
) -> None:
    """If the node has lost it meanwhile, say. Otherwise it would seem dropped for as long as the queue is open."""
    queue, other = connect(sweep=False), connect(sweep=False)
    made = (queue.create_tube(f"tube_{number}", "utubettl") for number in range(99))
    tube = next(tube for tube in made if owner_of(cluster, slot_of(tube)) is not owner_of(cluster, SESSIONS))
    owner_of(cluster, slot_of(tube)).command("FLUSHALL")
    nodes: Any = other.store._hub.nodes  # type: ignore[attr-defined]
    nodes.note_away(nodes.node_of(cast(Any, tube.driver).keys), 0.0)
    opened = other.tube[tube.name]
    assert opened.put("x").data == "x" if verb == "put" else opened.take(timeout=0) is None
    assert tube.statistics()["tasks"]["total"] == (verb == "put")


@pytest.mark.slow
def test_a_tube_whose_node_has_lost_everything_is_made_anew_by_who_creates_it(
    connect: Connect, cluster: RedisCluster
) -> None:
    queue = connect()
    made = (queue.create_tube(f"tube_{number}", "fifo") for number in range(99))
    tube = next(tube for tube in made if owner_of(cluster, slot_of(tube)) is not owner_of(cluster, SESSIONS))
    owner_of(cluster, slot_of(tube)).command("FLUSHALL")
    with pytest.raises(tubes.NoSuchTube):
        tube.put("x")
    assert queue.create_tube(tube.name, "fifo", if_not_exists=True) is tube
    tube.put("x")


def test_a_node_is_named_by_its_port(redis_cluster: str) -> None:
    """A socket does not tell where the other nodes are; without a host, a node is on localhost."""
    with redis.Redis.from_url(redis_cluster) as client:
        sock = client.config_get("unixsocket")["unixsocket"]
    with pytest.raises(tubes.BadOption, match="redis://host:port"):
        tubes.connect(f"unix://{sock}")
    with tubes.connect(redis_cluster.replace("127.0.0.1", ""), namespace="named") as queue:
        queue.create_tube("jobs", "fifo").drop()
        store: Any = queue.store
        store._hub.nodes.heed(redis.exceptions.MovedError("7 :6379"), None)
        assert store._hub.nodes._slots[7] == ("localhost", 6379)
        store._hub.nodes._slots.clear()  # a slot may be nobody's for a while
        queue.create_tube("jobs", "fifo").drop()


@pytest.mark.slow
def test_nodes_that_say_no_host_are_on_that_of_the_url(cluster: RedisCluster) -> None:
    for node in cluster.nodes:
        node.command("CONFIG SET", "cluster-preferred-endpoint-type", "unknown-endpoint")
    with tubes.connect(cluster.url, sweep=False) as queue:
        store: Any = queue.store
        assert {host for host, _ in store._hub.nodes._slots.values()} == {"127.0.0.1"}


def test_a_cluster_all_of_whose_nodes_have_moved_is_found_by_its_url(cluster: RedisCluster) -> None:
    """One answer is enough, from another node than the one that was lost."""

    def asked() -> list[int]:
        told = [node.command("INFO", "commandstats") for node in cluster.nodes]
        return [each.get("cmdstat_cluster|slots", {"calls": 0})["calls"] for each in told]

    with tubes.connect(cluster.url, sweep=False) as queue:
        store: Any = queue.store
        nodes = store._hub.nodes
        nodes._slots = dict.fromkeys(nodes._slots, ("127.0.0.1", 1))
        assert queue.create_tube("jobs", "fifo").put("x").id == 1
        for lost, node in enumerate(cluster.nodes):
            before = asked()
            nodes._look_round(("127.0.0.1", node.port), nodes.patience)
            assert sum(asked()) == sum(before) + 1 and asked()[lost] == before[lost]


def test_nodes_that_all_say_nothing_are_not_waited_for_one_after_the_other(redis_cluster: str) -> None:
    """As a large Cluster's do if the network loses what is sent to it. One that answers is found behind them."""
    with ExitStack() as open, tubes.connect(redis_cluster, busy_timeout=1, sweep=False) as queue:
        made = [open.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(20)]
        silent = [one.getsockname() for one in made]
        store: Any = queue.store
        nodes = store._hub.nodes
        slots, home = nodes._slots, nodes._home
        nodes._slots, nodes._home = {slot: silent[slot % 20] for slot in slots}, silent[0]
        began = time.monotonic()
        with pytest.raises(tubes.StoreUnavailable):
            queue.tubes()
        assert time.monotonic() - began < 12  # one after the other, each given its full time, they take 21
        nodes._slots[min(slots)] = home
        nodes._look_round(silent[0], nodes.patience)
        assert nodes._slots == slots


def test_a_node_that_was_waited_for_in_vain_is_left_out_until_it_answers(redis_cluster: str) -> None:
    """Work that no caller waits for leaves it out."""
    with tubes.connect(redis_cluster, namespace="loads", sweep=False) as queue:
        tube, store = queue.create_tube("jobs", "fifo"), cast(Any, queue.store)
        nodes, keys = store._hub.nodes, cast(Any, tube.driver).keys
        nodes.note_away(nodes.node_of(keys), 0.0)
        store.transact(tube.driver.start)
        assert store.holders(None, [tube.record]) == {}
        tube.put("x")
        assert store.holders(None, [tube.record]) == {tube.record.id: set()}


def test_a_tube_that_has_moved_is_left_out_once(redis_cluster: str) -> None:
    """Where many are asked at once. Those who ask then ask it by itself; and the next time it is there."""
    with tubes.connect(redis_cluster, namespace="moves", sweep=False) as queue:
        tube, store = queue.create_tube("left", "fifo", if_not_exists=True), cast(Any, queue.store)
        nodes, slot = store._hub.nodes, slot_of(tube, "moves")
        right = nodes._slots[slot]
        nodes._slots[slot] = next(address for address in nodes._slots.values() if address != right)
        assert store.holders(None, [tube.record]) == {}
        assert nodes._slots[slot] == right
        assert store.holders(None, [tube.record]) == {tube.record.id: set()}


@pytest.mark.slow
def test_a_node_that_crashes_under_load_loses_and_doubles_nothing(
    connect: Connect, cluster: RedisCluster
) -> None:
    """The tube's node and that of the sessions crash, one after the other."""
    queues = [connect(), connect()]
    tube = queues[0].create_tube("jobs", "fifo")
    with Load(queues) as load:
        eventually(lambda: len(load.acked) > 20)
        for slot in {slot_of(tube), SESSIONS}:
            node = owner_of(cluster, slot)
            node.stop("immediate")
            node.start()
            before = len(load.acked)
            eventually(lambda n=before: len(load.acked) > n + 20)  # type: ignore[misc]
    load.settle(connect)


def test_a_node_that_tells_of_others_where_nobody_answers_is_soon_said_to(cluster: RedisCluster) -> None:
    """As one does that knows the addresses of an inner network: the error names the one that was tried."""
    with ExitStack() as open:
        silent = []
        for node in cluster.nodes:
            silent.append(open.enter_context(socket.create_server(("127.0.0.2", node.port))))
            silent[-1].setblocking(False)
            node.command("CONFIG SET", "cluster-announce-hostname", "127.0.0.2")
            node.command("CONFIG SET", "cluster-preferred-endpoint-type", "hostname")
        for node in cluster.nodes:
            node.wait_until(lambda node=node: str(node.command("CLUSTER SLOTS")).count("'127.0.0.2'") == 3)  # type: ignore[misc]
        with pytest.raises(
            tubes.StoreUnavailable, match=rf"node 127\.0\.0\.2:{owner_of(cluster, SESSIONS).port}: "
        ):
            tubes.connect(cluster.url, busy_timeout=1, sweep=False)
        asked = 0
        for listener in silent:
            with suppress(BlockingIOError):
                while True:
                    listener.accept()[0].close()
                    asked += 1
        assert asked <= 3  # that node, and then the others once, to learn of its place


@pytest.mark.slow
def test_who_waits_at_a_node_that_hangs_is_not_taken_for_dead(cluster: RedisCluster) -> None:
    """However long it waits for an answer, it shows those who ask the other nodes that it lives."""
    url = f"{cluster.url}?dead_after=1.5"
    with tubes.connect(url, busy_timeout=3, sweep=False) as queue, tubes.connect(url, sweep=False) as other:
        made = (queue.create_tube(f"tube_{number}", "fifo") for number in range(99))
        tube = next(
            tube for tube in made if owner_of(cluster, slot_of(tube)) is not owner_of(cluster, SESSIONS)
        )
        thread, got = waiting(tube)
        node = owner_of(cluster, slot_of(tube))
        node.command("CLIENT KILL", "TYPE", "normal", "SKIPME", "yes")
        with node.hung():
            until = time.monotonic() + 2.5
            while time.monotonic() < until:
                assert not other.store.deaths_suspected()
                time.sleep(0.1)  # real time: that of the beats, which must go on
        tube.put("x")
        ended(thread)
        assert [task and task.data for task in got] == ["x"]


@pytest.mark.slow
@pytest.mark.parametrize(("dead_after", "busy_timeout", "most"), [(15, 1, 6), (1, 5, 2)])
def test_who_waits_is_not_called_later_for_each_tube_that_is_waited_for_at_a_node_that_hangs(
    cluster: RedisCluster, dead_after: int, busy_timeout: int, most: int
) -> None:
    """The node gets one try in some seconds, not one for each tube, and the try is shorter than a call's."""
    url = f"{cluster.url}?dead_after={dead_after}"
    for node in cluster.nodes:
        node.command("CONFIG SET", "cluster-node-timeout", 60_000)
    with tubes.connect(url, busy_timeout=busy_timeout, sweep=False) as queue:
        here, first = on_two_nodes(queue, cluster)
        node = owner_of(cluster, slot_of(first))
        there = [first, *beside(first, queue, cluster, 11)]
        for tube in there:
            threading.Thread(target=take_or_fail, args=(tube,), daemon=True).start()
            eventually(partial(queue.store.waiters.count, tube.record.id))
        thread, got = waiting(here)
        store: Any = queue.store
        ears = store._hub.listener._ears.values()
        eventually(lambda: sum(ear.is_waiting for ear in ears) == len(there) + 1)
        with tubes.connect(url, busy_timeout=2, sweep=False) as other:  # has no listener in common
            node.command("CLIENT KILL", "TYPE", "normal", "SKIPME", "yes")
            with node.hung():
                eventually(lambda: any(ear.is_waiting and ear.wire is None for ear in [*ears]))  # it connects
                began = time.monotonic()
                other.tube[here.name].put("x")
                ended(thread)
                took = time.monotonic() - began
        assert [task and task.data for task in got] == ["x"]
        assert took < most


def take_or_fail(tube: tubes.Tube) -> None:
    with suppress(tubes.StoreError):
        tube.take(timeout=20)


@pytest.mark.slow
def test_statistics_of_all_tubes_wait_for_a_node_that_hangs_once(cluster: RedisCluster) -> None:
    for node in cluster.nodes:
        node.command("CONFIG SET", "cluster-node-timeout", 60_000)
    with tubes.connect(cluster.url, busy_timeout=0.5, sweep=False) as queue:
        here, there = on_two_nodes(queue, cluster)
        away = [there, *beside(there, queue, cluster, 5)]
        with owner_of(cluster, slot_of(there)).hung():
            assert seconds_of_statistics(queue, here, away) < 4


@pytest.mark.slow
def test_statistics_of_all_tubes_wait_for_a_node_that_serves_no_slots_once(cluster: RedisCluster) -> None:
    with tubes.connect(cluster.url, busy_timeout=0.5, sweep=False) as queue:
        here, there = on_two_nodes(queue, cluster)
        away = [there, *beside(there, queue, cluster, 9)]
        owner_of(cluster, slot_of(there)).command("CLUSTER DELSLOTS", *{slot_of(tube) for tube in away})
        assert seconds_of_statistics(queue, here, away) < 2.5


def seconds_of_statistics(queue: tubes.Queue, here: tubes.Tube, away: list[tubes.Tube]) -> float:
    """How many seconds they take; the tubes that are away are left out of them."""
    began = time.monotonic()
    counted = queue.statistics()
    took = time.monotonic() - began
    assert here.name in counted and not {tube.name for tube in away} & counted.keys()
    return took


def beside(tube: tubes.Tube, queue: tubes.Queue, cluster: RedisCluster, count: int) -> list[tubes.Tube]:
    """So many more tubes on that tube's node."""
    node, found = owner_of(cluster, slot_of(tube)), list[tubes.Tube]()
    while len(found) < count:
        made = queue.create_tube(f"tube_{len(queue.tubes())}", "fifottl")
        if owner_of(cluster, slot_of(made)) is node:
            found.append(made)
    return found


def on_two_nodes(queue: tubes.Queue, cluster: RedisCluster) -> tuple[tubes.Tube, tubes.Tube]:
    """A tube on the catalogue's node, and one on another; the Cluster goes on when a node is away."""
    for node in cluster.nodes:
        node.command("CONFIG SET", "cluster-require-full-coverage", "no")
    catalogue, found = owner_of(cluster, SESSIONS), dict[bool, tubes.Tube]()
    while len(found) < 2:
        tube = queue.create_tube(f"tube_{len(queue.tubes())}", "fifottl")
        found[owner_of(cluster, slot_of(tube)) is catalogue] = tube
    return found[True], found[False]


@pytest.mark.slow
def test_a_node_that_is_away_disturbs_no_tube_of_another(cluster: RedisCluster) -> None:
    """Calls there go on, the dead are rescued, counts stored, processes begin. The rest is done later."""
    url = f"{owner_of(cluster, SESSIONS).url}?dead_after=1"
    with tubes.connect(url, busy_timeout=0.5) as queue:
        here, there = on_two_nodes(queue, cluster)
        there.put("x")
        here.put("x")
        holder = begin(HOLDER, url, there.name, here.name)
        node = owner_of(cluster, slot_of(there))
        try:
            assert heard(holder) == "holds"
            there.put("counted")
            node.stop("immediate")
        finally:
            finish(holder)
        task = here.take(timeout=20)
        assert task is not None and task.attempts == 2
        with tubes.connect(url, busy_timeout=0.5, sweep=False) as late:
            eventually(lambda: late.tube[here.name].statistics()["calls"]["release"] == 1)
            assert late.tube[here.name].put("y", delay=0.05).id == 2
            assert here.take(timeout=20) is not None
            with pytest.raises(tubes.StoreUnavailable):
                late.tube[there.name].put("y")
            node.start()
            eventually(lambda: can_put(there))
        eventually(lambda: there.statistics()["tasks"]["ready"] == 3)
        eventually(lambda: len(sessions_of(queue)) == 1)


@pytest.mark.slow
def test_counts_of_a_tube_whose_node_is_away_hold_up_no_others(cluster: RedisCluster) -> None:
    url = owner_of(cluster, SESSIONS).url
    with tubes.connect(url, busy_timeout=0.5, sweep=False) as queue:
        here, there = on_two_nodes(queue, cluster)
        owner_of(cluster, slot_of(there)).stop("immediate")
        counts: Any = [(there.record.id, {"put": 7}), (here.record.id, {"put": 7})]
        with pytest.raises(tubes.StoreUnavailable):
            queue.store.add_calls(counts)
        assert here.statistics()["calls"]["put"] == 7
        assert counts == [(there.record.id, {"put": 7})]


@pytest.mark.slow
def test_a_connect_waits_for_a_node_that_is_away_once(cluster: RedisCluster) -> None:
    """Even though it asks all nodes about their memory first, and then about their disks."""
    for node in cluster.nodes:
        node.command("CONFIG SET", "cluster-require-full-coverage", "no")
    catalogue = owner_of(cluster, SESSIONS)
    away = next(node for node in cluster.nodes if node is not catalogue)
    with away.hung():
        began = time.monotonic()
        tubes.connect(catalogue.url, busy_timeout=0.5, sweep=False).close()
        took = time.monotonic() - began
    assert 0.5 < took < 2.5, took  # a node that hangs is waited for a second longer than busy_timeout


@pytest.mark.slow
def test_calls_that_are_told_of_wait_for_no_tube_of_a_node_that_hangs(cluster: RedisCluster) -> None:
    """Callbacks of a tube come in the order of its commits; those of other tubes do not wait for them."""
    for node in cluster.nodes:
        node.command("CONFIG SET", "cluster-node-timeout", 60_000)
    failed: list[tuple[Exception, float]] = []

    def put_in_vain(tube: tubes.Tube) -> None:
        began = time.monotonic()
        try:
            tube.put("x")
        except tubes.StoreError as error:
            failed.append((error, time.monotonic() - began))

    with tubes.connect(owner_of(cluster, SESSIONS).url, busy_timeout=0.5, sweep=False) as queue:
        here, there = on_two_nodes(queue, cluster)
        told: list[tuple[str, object]] = []
        for tube in (here, there):
            tube.on_task_change(lambda task, event: told.append((task.tube, task.data)))
            tube.put("before")
        node = owner_of(cluster, slot_of(there))
        store: Any = queue.store
        idle = store._hub.nodes._idle["127.0.0.1", node.port]
        at_rest = len(idle)
        with node.hung():
            threads = [threading.Thread(target=put_in_vain, args=(there,)) for _ in range(4)]
            for thread in threads:
                thread.start()
            eventually(lambda: len(idle) < at_rest)
            began = time.monotonic()
            here.put("meanwhile")
            assert time.monotonic() - began < 1
            ended(*threads)
        assert told[2:] == [(here.name, "meanwhile")]
        assert len(failed) == 4 and max(took for _, took in failed) < 4.5
        assert any("for an earlier call to finish" in str(error) for error, _ in failed)


@pytest.mark.slow
def test_awaited_calls_to_a_node_that_hangs_hold_up_no_tube_of_another(cluster: RedisCluster) -> None:
    """Each node has threads of its own, as many as a queue has for its other calls."""
    for node in cluster.nodes:
        node.command("CONFIG SET", "cluster-node-timeout", 60_000)

    async def seconds_of_a_put(here: str, there: str, node: RedisServer) -> float:
        async with tubes.aio.connect(catalogue.url, busy_timeout=2, sweep=False) as queue:
            tube, away = await queue.get_tube(here), await queue.get_tube(there)
            with node.hung():
                calls = [asyncio.create_task(away.put("x")) for _ in range(50)]
                await asyncio.sleep(0.1)  # until they are under way, in real threads
                began = time.monotonic()
                await tube.put("meanwhile")
                took = time.monotonic() - began
            await asyncio.gather(*calls, return_exceptions=True)
            return took

    catalogue = owner_of(cluster, SESSIONS)
    with tubes.connect(catalogue.url, sweep=False) as queue:
        here, there = on_two_nodes(queue, cluster)
        assert asyncio.run(seconds_of_a_put(here.name, there.name, owner_of(cluster, slot_of(there)))) < 1


@pytest.mark.slow
def test_who_rescues_and_takes_waits_for_no_other_node(cluster: RedisCluster) -> None:
    """Unknown sessions, for which all tubes must be asked, are left to the sweep."""
    url = f"{owner_of(cluster, SESSIONS).url}?dead_after=1"
    with tubes.connect(url, busy_timeout=2, sweep=False) as queue:
        here, there = on_two_nodes(queue, cluster)
        here.put("x")
        holder = begin(HOLDER, url, here.name)
        assert heard(holder) == "holds"
        node = owner_of(cluster, slot_of(there))
        with node.hung():
            finish(holder)
            took: list[float] = []

            def is_taken() -> bool:
                began = time.monotonic()
                task = here.take(timeout=0)
                took.append(time.monotonic() - began)
                return task is not None

            eventually(is_taken)
        assert max(took) < 1.5


@pytest.mark.slow
def test_takes_do_not_wait_for_the_catalogue_s_node_again_and_again(cluster: RedisCluster) -> None:
    """They look there for the dead, of whom nothing is known while it hangs."""
    for node in cluster.nodes:
        node.command("CONFIG SET", "cluster-node-timeout", 60_000)
    with tubes.connect(f"{cluster.url}?dead_after=1", busy_timeout=1, sweep=False) as queue:
        _, there = on_two_nodes(queue, cluster)
        there.put_many(range(5))
        assert there.take(timeout=0) is not None
        catalogue = owner_of(cluster, SESSIONS)
        with catalogue.hung():
            assert not queue.store.deaths_suspected(thoroughly=True)  # waits
            began = time.monotonic()
            assert [there.take(timeout=0) is not None for _ in range(5)] == [True] * 4 + [False]
            assert time.monotonic() - began < 1.5


def can_put(tube: tubes.Tube) -> bool:
    """A node that has come back says for a while that the Cluster is down."""
    try:
        return tube.put("z").id == 3
    except tubes.StoreUnavailable:
        return False


def sessions_of(queue: tubes.Queue) -> set[str]:
    store: Any = queue.store
    return set(store.sessions().ends)


def test_full_durability_is_every_nodes(redis_cluster: str) -> None:
    """If a node has no file, or the servers lack the command, it is not supported."""
    with redis.RedisCluster.from_url(redis_cluster) as client:
        other = next(node for node in client.get_nodes() if node.name not in redis_cluster)
        client.config_set("appendonly", "no", target_nodes=other)
        with pytest.raises(tubes.NotSupported, match="durability='full'"):
            tubes.connect(redis_cluster, durability="full")
        client.config_set("appendonly", "yes", target_nodes=other)


@pytest.mark.parametrize(
    ("setting", "bad", "good"),
    [("appendonly", "no", "yes"), ("maxmemory-policy", "allkeys-lru", "noeviction")],
    ids=["file", "policy"],
)
def test_a_node_that_may_lose_tasks_is_warned_of(
    redis_cluster: str, monkeypatch: pytest.MonkeyPatch, caplog: Any, setting: str, bad: str, good: str
) -> None:
    """Even if it is another node than the one that the URL names."""
    monkeypatch.setattr(importlib.import_module("tubes.drivers.redis.runner"), "_warned", set())
    with redis.RedisCluster.from_url(redis_cluster) as client, caplog.at_level(logging.WARNING, "tubes"):
        other = next(node for node in client.get_nodes() if node.name not in redis_cluster)
        client.config_set(setting, bad, target_nodes=other)
        with tubes.connect(redis_cluster), tubes.connect(redis_cluster):
            client.config_set(setting, good, target_nodes=other)
    (record,) = caplog.records
    assert setting in record.getMessage()


@pytest.mark.redis(since="Redis 7.2")
@pytest.mark.slow
def test_full_durability_waits_for_the_catalogue_too(connect: Connect, cluster: RedisCluster) -> None:
    """Most tubes are on other nodes, and their puts wait only for these."""
    catalogue = owner_of(cluster, SESSIONS)
    queue = connect(durability="full", busy_timeout=0.1, sweep=False)
    catalogue.command("CONFIG SET", "appendfsync", "no")
    for name in "abcd":
        with pytest.raises(tubes.OutcomeUnknown, match="disk"):
            queue.create_tube(name, "fifo")
    catalogue.command("CONFIG SET", "appendfsync", "always")
    assert queue.create_tube("a", "fifo", if_not_exists=True).put("x").id == 1
