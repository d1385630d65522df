"""The store by which agents and tasks of a run meet: values, those who are missing, how it grows
with the nodes.
"""

from __future__ import annotations

import contextlib
import math
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from hpcstack_smoke.apps.exchange import read_by
from hpcstack_smoke.store import Client, Store

TOKEN = "0123456789abcdef"


@pytest.fixture
def root() -> Store:
    made = Store(TOKEN)
    made.start()
    return made


def hub(root: Store) -> Store:
    made = Store(TOKEN, ("127.0.0.1", root.port))
    made.start()
    return made


def client(store: Store) -> Client:
    return Client("127.0.0.1", store.port, TOKEN)


def test_values_reach_all_nodes_whoever_asks_first(root: Store) -> None:
    nodes = [root, hub(root), hub(root)]
    ranks = [client(node) for node in nodes for _ in range(4)]

    def work(rank: int) -> tuple[object, list[object]]:
        ranks[rank].put("place", rank, {"n": rank})
        return ranks[rank].get("place", (rank + 1) % 12, 20), ranks[rank].all("place", 12, 20)

    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(work, range(12)))
    assert [one for one, _ in found] == [{"n": (rank + 1) % 12} for rank in range(12)]
    assert all(every == [{"n": rank} for rank in range(12)] for _, every in found)
    assert root.opened <= 3 + 4 + 2  # this test's own, and one for each other node


def test_who_does_not_come_is_named(root: Store) -> None:
    one = client(hub(root))
    one.put("here", 1, "a")
    with pytest.raises(TimeoutError, match="0, 2 said nothing of here"):
        one.wait("here", 3, 0.3)
    with pytest.raises(TimeoutError, match="^7 said nothing of there"):
        one.get("there", 7, 0.3)


def test_a_first_node_that_is_gone_is_an_error_and_no_hang(root: Store) -> None:
    node = hub(root)
    one = client(node)
    one.put("a", 0, 1)
    assert node.upstream
    threading.Timer(0.3, node.upstream.line.shutdown, (socket.SHUT_RDWR,)).start()
    with pytest.raises(ConnectionError, match="first node is gone"):
        one.get("never", 0, 20)
    with pytest.raises(ConnectionError):
        one.get("later", 0, 20)


@pytest.mark.parametrize(
    "said",
    [b"wrong\n", b"\n", b"x" * 10_000, TOKEN.encode() + b"\n[]\n", TOKEN.encode() + b"\n{}\n"],
)
def test_who_has_not_the_token_or_speaks_otherwise_is_not_listened_to(
    root: Store, said: bytes
) -> None:
    good = client(root)
    good.put("secret", 0, "value")
    with socket.create_connection(("127.0.0.1", root.port)) as line:
        line.sendall(said)
        line.settimeout(10)
        with contextlib.suppress(ConnectionResetError):
            assert line.recv(100) == b""
    assert good.get("secret", 0, 5) == "value"


def traffic(nodes: int, ranks: int = 8) -> int:
    """Bytes that the first node moves when NODES leaders act as the tasks of tasks.exchange and
    io.shared do.
    """
    store = Store(TOKEN)
    store.start()
    leaders = [client(store) for _ in range(nodes)]

    def work(node: int) -> None:
        for rank in range(node * ranks, node * ranks + ranks):
            leaders[node].put("place", rank, ["10.0.0.1", 40000, "node"])
        for rank in range(node * ranks, node * ranks + ranks):
            leaders[node].get("place", (rank + 1) % (nodes * ranks), 60)
        leaders[node].wait("place", nodes * ranks, 60)

    with ThreadPoolExecutor(nodes) as pool:
        list(pool.map(work, range(nodes)))
    for one in leaders:
        one.close()
    return store.bytes


def test_what_the_first_node_moves_grows_no_worse_than_n_log_n() -> None:
    small, large = traffic(8), traffic(64)
    assert large / small <= 8 * math.log2(64 * 8) / math.log2(8 * 8)


def test_every_node_is_read_by_another_and_few_read_it() -> None:
    for nodes in (1, 2, 3, 16, 17, 64, 1000, 1024):
        read = [0] * nodes
        for node in range(nodes):
            others = read_by(node, nodes)
            assert node not in others
            assert len(set(others)) == len(others)
            for other in others:
                read[other] += 1
        most = nodes - 1 if nodes <= 16 else math.ceil(math.log2(nodes))
        assert set(read) <= {most}
