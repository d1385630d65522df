"""What a peer sends, and does not stop sending: rows T10, T11 and T18 of what once got through."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import requests

from conftest import make_site
from hpcstack.core.budget import Budget, read_within
from hpcstack.core.errors import HpcstackError, RegistryError
from hpcstack.oci import client, protocol, push, rate
from hpcstack.oci.client import Registry
from hpcstack.oci.protocol import is_this_machine
from hpcstack.publish import pull_image
from hpcstack.publish.push_image import KINDS
from hpcstack.recipe.model import Base

IMAGE = f"nvcr.io/nvidia/pytorch@sha256:{'0' * 64}"
LAYER = f"sha256:{'1' * 64}"
DRIP_S = 0.05
Answers = Callable[[str], Iterator[bytes]]  # the pieces of the answer to a path


class Peer:
    """An HTTP server that sends, piece by piece, whatever ANSWERS yields; one request a connection."""

    def __init__(self) -> None:
        self.answers: Answers = lambda _: iter([b"HTTP/1.1 404 None\r\nContent-Length: 0\r\n\r\n"])
        self.asked: list[str] = []
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.host = f"127.0.0.1:{self.socket.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            request = b""
            while b"\r\n\r\n" not in request:
                request += _receive(connection)
            head, _, body = request.partition(b"\r\n\r\n")
            length = re.search(rb"Content-Length: (\d+)", head)
            left = int(length[1]) - len(body) if length else 0
            while left > 0:
                left -= len(_receive(connection))
            path = head.split(b" ")[1].decode()
            self.asked.append(path)
            for piece in self.answers(path):
                connection.sendall(piece)


def _receive(connection: socket.socket) -> bytes:
    """Return what has come, or raise OSError: a client may go without asking anything."""
    piece = connection.recv(65536)
    if not piece:
        raise ConnectionError("the client is gone")
    return piece


def send_whole(body: bytes, *headers: str) -> Iterator[bytes]:
    lines = ["HTTP/1.1 200 OK", f"Content-Length: {len(body)}", "Connection: close", *headers]
    yield "\r\n".join([*lines, "", ""]).encode() + body


def drip_headers(_: str) -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\n"
    while True:
        time.sleep(DRIP_S)
        yield b"X-A: b\r\n" if time.time() % 1 < 0.5 else b"X-C: d\r\n"


def drip_body(_: str) -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"
    while True:
        time.sleep(DRIP_S)
        yield b" "


def drip_compressed(_: str) -> Iterator[bytes]:
    """Bytes that uncompress to nothing: empty blocks (RFC 1951, 3.2.4)."""
    yield b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n"
    yield b"\x1f\x8b\x08" + bytes(7)
    while True:
        time.sleep(DRIP_S)
        yield b"\0\0\0\xff\xff"


def endless_trailers(_: str) -> Iterator[bytes]:
    """One read does not come back from them."""
    yield b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    while True:
        time.sleep(DRIP_S)
        yield b"X-A: b\r\n"


def endless_body(_: str) -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\n\r\n"
    while True:
        yield b"[" * 65536


def say_nothing(_: str) -> Iterator[bytes]:
    time.sleep(9)
    yield b""


def nested_body(_: str) -> Iterator[bytes]:
    yield from send_whole(b'{"manifests":' + b"[" * 1_000_000)


@pytest.fixture
def peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Peer]:
    monkeypatch.setattr(protocol, "READ_S", 0.6)
    monkeypatch.setattr(client, "HEADERS_S", 0.6)
    monkeypatch.setattr(client, "LIST_S", 1.5)
    monkeypatch.setattr(client, "STUCK_S", 0.6)
    monkeypatch.setattr(pull_image, "ATTACHED_S", 1.5)
    monkeypatch.setattr(rate, "PERIOD_S", 0.6)
    monkeypatch.setattr(client, "BACK_OFF", 0.01)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    made = Peer()
    yield made
    made.socket.close()


@pytest.fixture
def registry(peer: Peer, tmp_path: Path) -> Registry:
    site = make_site(tmp_path, registries={"nvcr.io": {"mirror": peer.host, "plain_http": True}})
    return Registry(site, timeout=2)


BASE = Base(image=IMAGE)
ASKS: dict[str, Callable[[Registry], object]] = {
    "look_up": lambda registry: registry.look_up(BASE),
    "digest": lambda registry: registry.digest(BASE),
    "image": lambda registry: registry.image(BASE, "linux/amd64"),
    "blob": lambda registry: list(registry.blob(BASE, LAYER, 0)),
    "blob, resumed": lambda registry: list(registry.blob(BASE, LAYER, 100_000)),
    "statements": lambda registry: registry.statements(BASE, BASE.digest),
    "fetch_attached": lambda registry: registry.fetch_attached(BASE, LAYER, BASE.digest, 1000),
    "fetch_referrers": lambda registry: registry.fetch_referrers(BASE, BASE.digest),
    "tags": lambda registry: registry.tags(BASE),
    "pull and verify --from": lambda registry: pull_image.read_attested(
        BASE, "linux/amd64", None, registry
    ),
}


@pytest.mark.parametrize(
    "answers", [drip_headers, drip_body, drip_compressed, endless_trailers, nested_body]
)
@pytest.mark.parametrize("ask", ASKS)
def test_t10_no_answer_takes_for_ever(
    peer: Peer, registry: Registry, ask: str, answers: Answers
) -> None:
    peer.answers = answers
    began = time.monotonic()
    with contextlib.suppress(HpcstackError):
        ASKS[ask](registry)
    assert time.monotonic() - began < 8
    assert peer.asked


class Slow(push._Watched):
    """A blob that takes longer to send than a peer may be silent, and never stands still."""

    def read(self, count: int = -1) -> bytes:
        time.sleep(0.2)
        return super().read(count)


@pytest.mark.parametrize("answers", [drip_headers, say_nothing])
def test_t10_what_is_sent_is_answered_or_given_up(
    peer: Peer, registry: Registry, answers: Answers
) -> None:
    """The time runs from when the last piece was taken."""
    peer.answers = answers
    for data in (b"a manifest", Slow(io.BytesIO(bytes(100_000)), 100_000, lambda _: None)):
        began = time.monotonic()
        with pytest.raises((RegistryError, requests.RequestException)):
            registry._request(f"http://{peer.host}/put", "PUT", data=data, timeout=(2, 0.6))
        assert time.monotonic() - began < 6


def test_t10_what_takes_long_to_send_is_sent(peer: Peer, registry: Registry) -> None:
    peer.answers = lambda _: send_whole(b"{}")
    data = Slow(io.BytesIO(bytes(100_000)), 100_000, lambda _: None)
    began = time.monotonic()
    answer = registry._request(f"http://{peer.host}/put", "PUT", data=data, timeout=(2, 0.6))
    assert answer.status_code == 200
    assert time.monotonic() - began > 1.2


@pytest.mark.parametrize("ask", [name for name in ASKS if "blob" not in name])
def test_t10_an_answer_without_end_is_given_up(peer: Peer, registry: Registry, ask: str) -> None:
    peer.answers = endless_body
    with contextlib.suppress(HpcstackError):
        ASKS[ask](registry)


def test_t10_a_list_that_goes_on_and_on(peer: Peer, registry: Registry) -> None:
    """Each page is small, whole and on time, and names the next."""

    def answers(path: str) -> Iterator[bytes]:
        time.sleep(0.1)
        link = f'Link: <{path.partition("?")[0]}?n={time.time()}>; rel="next"'
        yield from send_whole(b'{"tags": ["a"], "manifests": []}', link)

    peer.answers = answers
    for ask in ("tags", "fetch_referrers"):
        began = time.monotonic()
        with pytest.raises(RegistryError, match="has not finished its answer"):
            ASKS[ask](registry)
        assert time.monotonic() - began < 3


def test_t10_many_attachments_that_each_take_their_time(peer: Peer, registry: Registry) -> None:
    kind = KINDS["sbom"][0]
    bodies = [b'{"n": %d}' % n for n in range(40)]
    manifests = {f"sha256:{hashlib.sha256(body).hexdigest()}": body for body in bodies}
    listed = [{"artifactType": kind, "digest": digest} for digest in manifests]

    def answers(path: str) -> Iterator[bytes]:
        if "/referrers/" in path:
            yield from send_whole(json.dumps({"manifests": listed}).encode())
            return
        time.sleep(0.2)
        yield from send_whole(manifests[path.rpartition("/")[2]])

    peer.answers = answers
    began = time.monotonic()
    with pytest.raises(RegistryError, match="has not finished its answer"):
        ASKS["pull and verify --from"](registry)
    assert time.monotonic() - began < 4


# Of this program alone: what getrusage(2) says, a program inherits from who has started it.
PRINT_PEAK = """
status = Path("/proc/self/status").read_text()
print(int(status.partition("VmHWM:")[2].split()[0]) // 1024)
"""
IN_A_SMALL_ROOM = (
    """
import sys
from pathlib import Path
from hpcstack.core.errors import RegistryError
from hpcstack.oci.client import Registry
from hpcstack.recipe.model import Base
from hpcstack.site.load import Site
host, ask, top = sys.argv[1:]
site = Site.model_validate({"store": Path(top), "lock_dir": Path(top), "module_root": Path(top),
    "registries": {"nvcr.io": {"mirror": host, "plain_http": True}}})
base = Base(image="nvcr.io/nvidia/pytorch@sha256:" + "0" * 64)
registry = Registry(site)
try:
    found = registry.tags(base) if ask == "tags" else registry.fetch_referrers(base, base.digest)
    print("took", len(found))
except RegistryError as error:
    print("refused", error.message)
"""
    + PRINT_PEAK
)


@pytest.mark.parametrize(
    ("ask", "entry"), [("tags", b'"a"'), ("tags", b"[]"), ("referrers", b'{"a":[]}')]
)
def test_t11_fifty_pages_do_not_fill_the_memory(
    peer: Peer, tmp_path: Path, ask: str, entry: bytes
) -> None:
    """4 MiB a page, of which each is allowed; in megabytes of all memory."""
    page = b",".join([entry] * ((4 << 20) // (len(entry) + 1) - 40))
    body = b'{"%s": [%s]}' % (b"tags" if ask == "tags" else b"manifests", page)

    def answers(path: str) -> Iterator[bytes]:
        link = f'Link: <{path.partition("?")[0]}?n={len(peer.asked)}>; rel="next"'
        yield from send_whole(body, link)

    peer.answers = answers
    done = subprocess.run(
        [sys.executable, "-c", IN_A_SMALL_ROOM, peer.host, ask, str(tmp_path)],
        capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30)),
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert lines[0].startswith("refused"), done.stdout + done.stderr
    assert int(lines[1]) < 600


def test_a_budget_counts_bytes_entries_and_seconds() -> None:
    blocks = iter([b"ab", b"cd", b""])
    assert read_within(lambda: next(blocks), Budget("x", RegistryError, "", 4)) == b"abcd"
    blocks = iter([b"ab", b"cde", b""])
    with pytest.raises(RegistryError, match="x answered with more than 4 bytes"):
        read_within(lambda: next(blocks), Budget("x", RegistryError, "", 4))
    budget = Budget("x", RegistryError, "", 0, entries=3)
    budget.take_entries(3)
    with pytest.raises(RegistryError, match="x lists more than 3 entries"):
        budget.take_entries(1)
    with pytest.raises(RegistryError, match="x has not finished its answer after 0 s"):
        read_within(lambda: b"a", Budget("x", RegistryError, "", 0, seconds=0.05))


# -- T18: where a registry may send us


def _redirect(target: str) -> Answers:
    def answers(_: str) -> Iterator[bytes]:
        yield f"HTTP/1.1 307 There\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n".encode()

    return answers


@pytest.mark.parametrize(
    ("registry_at", "target", "is_followed"),
    [
        ("https://reg.example", "https://cdn.example/x", True),
        ("https://reg.example", "http://cdn.example/x", False),
        ("https://reg.example", "https://10.0.0.5/x", False),
        ("https://reg.example", "https://127.0.0.1:8443/x", False),
        ("https://reg.example", "https://localhost/x", False),
        ("https://reg.example", "https://127.1/x", False),
        ("https://reg.example", "https://[::1]/x", False),
        ("https://reg.example", "file:///etc/passwd", False),
        ("http://reg.example", "http://minio.example:9000/x", True),
        ("http://reg.example", "http://10.0.0.5:9000/x", True),
        ("http://reg.example", "http://127.0.0.1:631/x", False),
        ("http://reg.example", "http://2130706433/x", False),
        ("http://reg.example", "http://0x7f.1/x", False),
        ("http://reg.example", "http://[::ffff:127.0.0.1]/x", False),
        ("http://reg.example", "http://0.0.0.0/x", False),
        ("http://reg.example", "http://169.254.169.254/latest/meta-data", False),
        ("http://reg.example", "http://[fe80::1]/x", False),
        ("https://10.0.0.4", "https://10.0.0.5/x", True),
        ("https://10.0.0.4", "https://127.0.0.1/x", False),
        ("http://127.0.0.1:5000", "http://127.0.0.1:9000/x", True),
    ],
)
def test_t18_where_a_redirect_may_lead(
    tmp_path: Path, registry_at: str, target: str, is_followed: bool
) -> None:
    from urllib.parse import urlsplit

    found = Registry(make_site(tmp_path))._may_follow(urlsplit(registry_at), urlsplit(target))
    assert found == is_followed


def test_t18_what_listens_on_this_machine_is_not_asked(
    peer: Peer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registry is elsewhere; here, by a name that only this test knows."""
    inner = Peer()
    real = socket.getaddrinfo

    def resolve(host: str, *rest: object, **more: object) -> object:
        return real("127.0.0.1" if host == "reg.example" else host, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    name = f"reg.example:{peer.host.partition(':')[2]}"
    site = make_site(tmp_path, registries={"nvcr.io": {"mirror": name, "plain_http": True}})
    peer.answers = _redirect(f"http://{inner.host}/admin")
    for ask in ("look_up", "digest", "blob", "tags", "fetch_referrers"):
        with pytest.raises(RegistryError, match="which is not followed"):
            ASKS[ask](Registry(site, timeout=2, tries=1))
    assert peer.asked
    assert not inner.asked
    inner.socket.close()


@pytest.mark.parametrize("is_registry_here", [False, True])
def test_t18_a_name_that_leads_to_this_machine(
    peer: Peer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_registry_here: bool
) -> None:
    """Whoever runs the domain says where it leads, after we have looked at the name."""
    inner = Peer()
    inner.answers = lambda _: send_whole(b"secret")
    real = socket.getaddrinfo

    def resolve(host: str, *rest: object, **more: object) -> object:
        return real("127.0.0.1" if host.endswith(".example") else host, *rest, **more)  # type: ignore[arg-type]

    def is_here(address: str) -> bool:
        """As if the registry, which listens first, were elsewhere."""
        return is_this_machine(address) and (is_registry_here or bool(peer.asked))

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(client, "is_this_machine", is_here)
    site = make_site(tmp_path, registries={"nvcr.io": {
        "mirror": f"reg.example:{peer.host.partition(':')[2]}", "plain_http": True,
    }})  # fmt: skip
    peer.answers = _redirect(f"http://inner.example:{inner.host.partition(':')[2]}/admin")
    with contextlib.suppress(HpcstackError):
        ASKS["look_up"](Registry(site, timeout=2, tries=1))
    assert peer.asked
    assert bool(inner.asked) == is_registry_here
    inner.socket.close()


@pytest.mark.parametrize(
    "name", ["localhost", "a.localhost.", "127.1", "0", "::1", "fe80::1", "x.local"]
)
def test_names_of_this_machine(name: str) -> None:
    assert is_this_machine(name)
    assert not is_this_machine("cdn.example")
    assert not is_this_machine("10.0.0.5")


# -- T16, T17, F1: logs, archives and dumps, whose authors are anybody


def _measure(code: str, *words: str, most_megabytes: int = 2048) -> tuple[list[str], int, float]:
    """What CODE prints, the megabytes that it takes, and its processor seconds."""
    limit = most_megabytes << 20
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\nfrom pathlib import Path\n{code}\n{PRINT_PEAK}", *words],
        capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    lines = done.stdout.splitlines()
    assert lines, done.stderr
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return lines[:-1], int(lines[-1]), spent


COUNT_USES = """
from datetime import datetime, timezone
from hpcstack.publish import usage
usage.MOST_STRANGE, usage.MOST_USERS = 500, 20_000
from hpcstack.publish.usage import count_usage
from hpcstack.releases.tree import Tree
from hpcstack.site.load import Site
top = Path(sys.argv[1])
site = Site.model_validate({"store": top, "lock_dir": top, "module_root": top})
found = count_usage(site, Tree(top), 90, datetime.fromtimestamp(1764150000, timezone.utc), [sys.argv[2]])
print(found.lines, found.others, sum(one.unnamed for one in found.releases), sum(one.uses for one in found.releases))
"""


@pytest.mark.parametrize("vary", ["release", "user", "both"])
def test_t16_a_log_of_names_without_end(tmp_path: Path, vary: str) -> None:
    """37 MB of them took 1.28 GB."""
    count = 60_000
    log = tmp_path / "log"
    with log.open("w") as file:
        for number in range(count):
            release = f"r{number}{'x' * 60}" if vary != "user" else "pytorch/24.11-r1"
            user = f"u{number}{'x' * 60}" if vary != "release" else "ada"
            file.write(
                f"hpcstack-usage: v1 what=load release={release} user={user} job=- at=1764140000\n"
            )
    (said,), megabytes, _ = _measure(COUNT_USES, str(tmp_path), str(log))
    lines, others, unnamed, uses = map(int, said.split())
    assert lines == count == others + uses, "each use is counted somewhere"
    assert (others if vary != "user" else unnamed) > 0
    assert megabytes < 120


READ_DATABASE = """
from hpcstack.publish import osv
osv.MAX_KEPT = 50_000
from hpcstack.publish.osv import Target, read_database
from hpcstack.core.errors import InputError
try:
    found = read_database(Path(sys.argv[1]), {Target("PyPI", "torch")}, "2026-11-28")
    print(found.records, found.damaged, sum(map(len, found.affected.values())))
except InputError as error:
    print("refused", error.message)
"""


@pytest.mark.parametrize("what", ["versions", "aliases", "ranges", "events", "long names", "rows"])
def test_t17_a_database_that_unpacks_to_much(tmp_path: Path, what: str) -> None:
    """9.7 MB of archive took 418 MB and 22 s."""
    import zipfile

    row: dict[str, object] = {"package": {"ecosystem": "PyPI", "name": "torch"}}
    record: dict[str, object] = {"id": "X-1", "modified": "2026-01-01", "affected": [row]}
    many = [f"{number}.0" for number in range(20_000)]
    if what == "versions":
        row["versions"] = many
    elif what == "aliases":
        record["aliases"] = many
    elif what == "ranges":
        row["ranges"] = [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}]}] * 20_000
    elif what == "events":
        events = [{"introduced": str(number)} for number in range(1000)]
        row["ranges"] = [{"type": "ECOSYSTEM", "events": events}] * 20
    elif what == "long names":
        row["versions"] = [f"{number}{'x' * 100_000}" for number in range(100)]
    else:
        record["affected"] = [{**row, "versions": many[:1000]}] * 20
    (tmp_path / "PyPI").mkdir()
    with zipfile.ZipFile(tmp_path / "PyPI/all.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(5):
            archive.writestr(f"{number}.json", json.dumps(record))
    (said,), megabytes, seconds = _measure(READ_DATABASE, str(tmp_path))
    assert megabytes < 200, said
    assert seconds < 5, said
    if what in ("versions", "aliases", "ranges"):
        assert said == "5 5 0", "each is damaged, and said to be"
    if what in ("rows", "events"):
        assert said.startswith("refused"), said


READ_FLIGHTS = """
from hpcstack.launch import flights
from hpcstack.core.errors import InputError
flights.READER_S = 3
try:
    print(len(flights.read_flights(Path(sys.argv[1]))))
except InputError as error:
    print("refused", error.message)
"""
PLAIN = {
    "version": "2.5",
    "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
    "entries": [],
}
ROW = {
    "process_group": ("0", "default_pg"),
    "profiling_name": "nccl:all_reduce",
    "collective_seq_id": 1,
}


def _make_dump(what: str) -> bytes:
    import pickle

    many = list(range(100_000))
    group = {"desc": "x", "ranks": json.dumps(many)}
    frame = {"filename": "/usr/lib/python3/x.py", "line": 1}
    documents: dict[str, dict[str, object]] = {
        "a list named again and again": {"entries": [{**ROW, "input_sizes": [many] * 100_000}]},
        "frames named again and again": {"entries": [{**ROW, "frames": [frame] * 100_000}] * 256},
        "members named again and again": {
            "pg_config": {str(number): group for number in range(20_000)}
        },
    }
    if what in documents:
        return pickle.dumps({**PLAIN, **documents[what]}, 2)
    if what == "a memo":
        return b"\x80\x02}r\x00\x00\x00\x0f."
    if what == "a length":
        return b"\x80\x04\x8e" + (1 << 40).to_bytes(8, "little") + b"."
    assert what == "keys of one hash"  # Python's hash of an integer is its rest by 2^61 - 1
    keys = b"".join(
        b"\x8a\x0d" + ((2**61 - 1) * number).to_bytes(13, "little") + b"K\0"
        for number in range(1, 300_000)
    )
    return b"\x80\x02}(" + keys + b"u."


@pytest.mark.parametrize(
    "what",
    [
        "a memo",
        "a length",
        "a list named again and again",
        "frames named again and again",
        "members named again and again",
        "keys of one hash",
    ],
)
def test_f1_a_dump_that_asks_for_much(tmp_path: Path, what: str) -> None:
    (tmp_path / "rank_0").write_bytes(_make_dump(what))
    (said,), megabytes, seconds = _measure(READ_FLIGHTS, str(tmp_path), most_megabytes=9000)
    assert said.startswith("refused") or what == "frames named again and again", said
    assert megabytes < 400
    assert seconds < 10
