"""A hostile registry, or a base in a good one: rows C2, M3, M4, M5 of what once got through, and
their siblings.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import resource
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import make_site
from hpcstack.adopt.survey import read_rc
from hpcstack.core import data
from hpcstack.core.errors import HpcstackError, InputError, RegistryError, sanitize_for_terminal
from hpcstack.core.quote import check_unbroken, quote_dockerfile
from hpcstack.core.untrusted import parse_untrusted_json
from hpcstack.lock.model import Lock
from hpcstack.oci.client import Registry
from hpcstack.oci.config import MAX_CONFIG, MAX_MANIFEST, read_image_config_of
from hpcstack.oci.protocol import may_be_asked, may_know
from hpcstack.recipe.catalog import Catalog
from hpcstack.recipe.model import Base, Stack
from hpcstack.render.image import render_image_files
from support.clock import processor_seconds
from support.locks import example_lock

MINIFORGE = Catalog([data.find_data_folder("recipes")]).find("miniforge-26.3").stack
IMAGE = "nvcr.io/nvidia/pytorch:24.11-py3"
ENDS = ["\n", "\r", "\0", "\x0b", "\x0c", "\x85", "\u2028", "\u2029", "\x1b[2J", "\x9b", "\u202e"]


class Hostile(BaseHTTPRequestHandler):
    """Answers with what it is given, whatever is asked; PATHS are {end of a path: (status, headers,
    body)}.
    """

    paths: ClassVar[dict[str, tuple[int, dict[str, str], bytes]]] = {}
    seen: ClassVar[list[tuple[str, str]]] = []

    def do_GET(self) -> None:
        self.seen.append((self.path, self.headers.get("Authorization", "")))
        for part, (status, headers, body) in self.paths.items():
            if part in self.path:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                return
        self.send_response(404)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[tuple[Registry, str]]:
    Hostile.paths.clear()
    Hostile.seen.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hostile)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    host = f"127.0.0.1:{server.server_port}"
    login = tmp_path / "logins"
    login.write_text("machine 127.0.0.1 login me password s3cret\n")
    site = make_site(
        tmp_path,
        registries={"nvcr.io": {"mirror": host, "plain_http": True, "credentials": str(login)}},
    )
    yield Registry(site, timeout=10), host
    server.shutdown()


@pytest.fixture(scope="module")
def stack() -> Stack:
    """One is enough here."""
    return Catalog([data.find_data_folder("recipes")]).find("pytorch-24.11").stack


@pytest.fixture(scope="module")
def lock(stack: Stack) -> Lock:
    return example_lock(stack)


def sha(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def serve(config: dict[str, Any] | bytes) -> None:
    body = config if isinstance(config, bytes) else json.dumps(config).encode()
    manifest = json.dumps(
        {"schemaVersion": 2, "config": {"digest": sha(body)}, "layers": []}
    ).encode()
    Hostile.paths |= {"/manifests/": (200, {}, manifest), sha(body): (200, {}, body)}


def said(**inner: Any) -> dict[str, Any]:
    return {"os": "linux", "architecture": "amd64", "config": inner}


FIELDS: dict[str, Callable[[str], dict[str, Any]]] = {
    "a variable's value": lambda bad: {"Env": [f"PATH=/usr/bin{bad}%setup"]},
    "a variable's name": lambda bad: {"Env": [f"A{bad}RUN=1"]},
    "an entrypoint": lambda bad: {"Entrypoint": ["/bin/sh", f"x{bad}y"]},
    "a command": lambda bad: {"Cmd": [f"x{bad}y"]},
    "a working directory": lambda bad: {"WorkingDir": f"/w{bad}x"},
    "a user": lambda bad: {"User": f"root{bad}x"},
}
IN_WORDS = "\n"  # a word of a command may be a script of several lines


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        (field, bad)
        for field in FIELDS
        for bad in ENDS
        if not (field in ("an entrypoint", "a command") and bad == IN_WORDS)
    ],
)
def test_c2_what_ends_a_line_is_refused_where_it_enters(
    hostile: tuple[Registry, str], field: str, bad: str
) -> None:
    serve(said(**FIELDS[field](bad)))
    with pytest.raises(InputError, match=r"nvcr\.io/nvidia/pytorch"):
        hostile[0].look_up(Base(image=IMAGE))
    with pytest.raises(InputError, match=r"nvcr\.io/nvidia/pytorch"):
        hostile[0].facts(Base(image=IMAGE))


def test_c2_a_label_of_several_lines_is_one(hostile: tuple[Registry, str]) -> None:
    serve(said(Labels={"description": "one\n\ttwo"}, Env=["A=1"]))
    assert hostile[0].look_up(Base(image=IMAGE)).configs["linux/amd64"]["config"]["Labels"] == {
        "description": "one two"
    }
    serve(said(Labels={"description": "\x1b[31mred\u202e\ufeff", "a\nb": None}))
    found = hostile[0].look_up(Base(image=IMAGE)).configs["linux/amd64"]["config"]["Labels"]
    assert found == {"description": " [31mred ", "a b": ""}


def test_c2_what_no_runtime_can_say_is_left_out(hostile: tuple[Registry, str]) -> None:
    """A name that begins with `-` would be an option of enroot's or podman's; a tab in a value is
    docker.io/php's.
    """
    serve(
        said(
            Env=[
                "--conf=/x",
                "-v/:/host=1",
                "--=x",
                "BASH_FUNC_ml%%=() { :;\n}",
                "A B=1",
                "PHPIZE_DEPS=autoconf \t\tdpkg",
            ]
        )
    )
    found = hostile[0].look_up(Base(image=IMAGE)).configs["linux/amd64"]["config"]
    assert found["Env"] == ["PHPIZE_DEPS=autoconf \t\tdpkg"]


@pytest.mark.parametrize("variable", ["--", "-v/:/host", "A B", "A=B", ""])
def test_c2_nor_does_a_lock_or_a_step_say_it(lock: Lock, tmp_path: Path, variable: str) -> None:
    from hpcstack.lock import model
    from hpcstack.runtimes.base import Step, list_kept_variables

    found = json.loads(lock.text())
    next(iter(found["base"]["platforms"].values()))["environment"] = {variable: "x"}
    (tmp_path / "a.lock.json").write_text(json.dumps(found))
    with pytest.raises(InputError, match="not a lock"):
        model.read_lock(tmp_path / "a.lock.json")
    assert list_kept_variables(
        Step(image=tmp_path, command=("true",), image_environment={variable: "x", "A": "1"})
    ) == {"A": "1"}


@pytest.mark.parametrize(
    ("where", "bad"),
    [
        (where, bad)
        for where in ("environment", "labels", "workdir", "entrypoint", "command")
        for bad in ("\n", "\r", "\x85", "\u2028", "\x1b")
        if not (where in ("entrypoint", "command") and bad == IN_WORDS)
    ],
)
def test_c2_a_lock_that_somebody_wrote_says_no_more_than_a_registry_may(
    lock: Lock, tmp_path: Path, where: str, bad: str
) -> None:
    from hpcstack.lock import model

    path = tmp_path / "pytorch-24.11.lock.json"
    found = json.loads(lock.text())
    platform = next(iter(found["base"]["platforms"].values()))
    text = f"/bin{bad}%setup"
    platform[where] = (
        {"PATH": text}
        if where in ("environment", "labels")
        else text
        if where == "workdir"
        else [text]
    )
    path.write_text(json.dumps(found))
    with pytest.raises(InputError, match="not a lock"):
        model.read_lock(path)


@pytest.mark.parametrize("bad", ["\n", "\r", "\0", "\x85", "\u2028"])
def test_c2_and_again_where_it_would_be_written(stack: Stack, lock: Lock, bad: str) -> None:
    platform = next(iter(lock.base.platforms))
    locked = lock.platform(platform).model_copy(
        update={"environment": {"PATH": f"/bin{bad}%setup{bad}touch /x"}}
    )
    hostile = lock.model_copy(
        update={"base": lock.base.model_copy(update={"platforms": {platform: locked}})}
    )
    with pytest.raises(InputError, match="ends its line"):
        render_image_files(stack, hostile, platform)
    for quoting in (check_unbroken, quote_dockerfile):
        with pytest.raises(InputError):
            quoting(f"a{bad}b")


SCRIPT = 'set -e\n%post\nRUN x\nfi\n    exec "$@"\nelse\n'


@pytest.mark.parametrize(
    ("entrypoint", "command"),
    [
        ((), ("printf", "%s|", SCRIPT, "b")),
        (("printf", "%s|", SCRIPT), ("b",)),
        (("printf", "%s|", SCRIPT, "b"), ()),
    ],
)
def test_c2_a_script_in_a_command_is_one_word_of_it(
    stack: Stack, lock: Lock, tmp_path: Path, entrypoint: tuple[str, ...], command: tuple[str, ...]
) -> None:
    taken = read_image_config_of(
        said(Entrypoint=list(entrypoint), Cmd=list(command), WorkingDir=str(tmp_path)), IMAGE
    )["config"]
    platform = next(iter(lock.base.platforms))
    words = {"entrypoint": entrypoint, "command": command, "workdir": taken["WorkingDir"]}
    locked = lock.platform(platform).model_copy(update=words)
    base = lock.base.model_copy(update={"platforms": {platform: locked}})
    own = stack.model_copy(update={"entrypoint": ()})

    files = render_image_files(own, lock.model_copy(update={"base": base}), platform)
    plain = render_image_files(own, lock, platform)
    for path in ("apptainer.def", "Dockerfile", "enroot.sh"):
        assert files[path].count("\n") == plain[path].count("\n")

    etc = "context/hpcstack/etc"
    script = files[f"{etc}/rc"].replace(". /opt/hpcstack/compat.sh\n", "")
    for text in (script, files[f"{etc}/singularity/runscript"]):
        done = subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=True)
        assert done.stdout == f"{SCRIPT}|b|"
    assert read_rc(files[f"{etc}/rc"]) == (entrypoint, command, str(tmp_path))


@given(
    st.dictionaries(
        st.sampled_from(["PATH", "A", "LD_PRELOAD", "BASH_ENV"]), st.text(max_size=40), max_size=3
    )
)
def test_c2_whatever_a_config_says_leaves_no_line(environment: dict[str, str]) -> None:
    """What is taken is rendered into formats whose every line is ours."""
    try:
        taken = read_image_config_of(
            said(Env=[f"{name}={value}" for name, value in environment.items()]), IMAGE
        )
    except (HpcstackError, TypeError):
        return
    stack, lock = MINIFORGE, example_lock(MINIFORGE)
    name = next(iter(lock.base.platforms))
    pairs = dict(entry.partition("=")[::2] for entry in taken["config"].get("Env", []))
    locked = lock.platform(name).model_copy(update={"environment": pairs})
    files = render_image_files(
        stack,
        lock.model_copy(
            update={"base": lock.base.model_copy(update={"platforms": {name: locked}})}
        ),
        name,
    )
    plain = render_image_files(stack, lock, name)
    for path in ("apptainer.def", "Dockerfile", "enroot.sh"):
        assert files[path].count("\n") == plain[path].count("\n")
    assert files["context/hpcstack/etc/environment"].splitlines() == [
        line for line in files["context/hpcstack/etc/environment"].split("\n") if line
    ]


@pytest.mark.parametrize(
    "inner",
    [
        {"Env": [f"A{n}=1" for n in range(5000)]}, {"Env": [f"A={'x' * 200_000}"]}, {"Labels": {"x" * 300: "1"}},
        {"WorkingDir": "/" + "w" * 5000}, {"Labels": {f"a{n}": "x" * 100_000 for n in range(20)}},
    ],
)  # fmt: skip
def test_m5_a_config_of_sizes_that_nothing_takes_is_refused(inner: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"evil\.example/base:1 is not taken"):
        read_image_config_of(said(**inner), "evil.example/base:1")


def test_m5_an_answer_that_unpacks_to_gigabytes_is_not_read(hostile: tuple[Registry, str]) -> None:
    blanks = gzip.compress(b'{"a":"' + b" " * (100 << 20) + b'"}', 9)
    Hostile.paths["/manifests/"] = (200, {"Content-Encoding": "gzip"}, blanks)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(RegistryError, match="more than 4 MiB"):
        hostile[0].look_up(Base(image=IMAGE))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10, "KiB"


@pytest.mark.parametrize(
    ("part", "size"), [("/manifests/", MAX_MANIFEST), ("/tags/", MAX_MANIFEST)]
)
def test_m5_long_answers_are_refused(hostile: tuple[Registry, str], part: str, size: int) -> None:
    Hostile.paths[part] = (200, {}, b'{"a":"' + b"x" * size + b'"}')
    with pytest.raises(RegistryError):
        (hostile[0].tags if "tags" in part else hostile[0].look_up)(Base(image=IMAGE))


def test_m5_a_long_config_is_refused(hostile: tuple[Registry, str]) -> None:
    serve(b'{"config": {"Env": ["A=' + b"x" * MAX_CONFIG + b'"]}}')
    with pytest.raises(RegistryError, match="more than 1 MiB"):
        hostile[0].look_up(Base(image=IMAGE))


@pytest.mark.parametrize(
    "text",
    [
        "[" * 200_000,
        '{"a":' * 100 + "1" + "}" * 100,
        "[]",
        "1",
        "",
        "{",
        '{"a": 1' + "0" * 5000 + "}",
    ],
)
def test_m5_documents_that_are_none(text: str) -> None:
    with pytest.raises(ValueError):
        parse_untrusted_json(text.encode(), MAX_MANIFEST)


@pytest.mark.parametrize(
    ("realm", "host", "plain", "asked"),
    [
        ("https://nvcr.io/proxy_auth", "nvcr.io", False, True),
        ("https://auth.docker.io/token", "docker.io", False, True),
        ("https://gitlab.example.org/jwt/auth", "registry.example.org", False, True),
        ("http://127.0.0.1:5000/token", "127.0.0.1:5000", True, True),
        ("http://127.0.0.1:5000/token", "127.0.0.1:5000", False, False),
        ("http://127.0.0.1:6000/token", "127.0.0.1:5000", True, False),
        ("http://169.254.169.254/latest/meta-data", "nvcr.io", False, False),
        ("https://169.254.169.254/latest/meta-data", "nvcr.io", False, False),
        ("https://[::1]/x", "nvcr.io", False, False),
        ("https://localhost/x", "nvcr.io", False, False),
        ("https://2130706433/x", "nvcr.io", False, False),
        ("https://user:pass@nvcr.io/token", "nvcr.io", False, False),
        ("http://internal.example.org/secret", "nvcr.io", True, False),
        ("file:///etc/passwd", "nvcr.io", True, False),
        ("", "nvcr.io", False, False),
    ],
)
def test_m3_a_realm_is_https_or_the_registry_itself(
    realm: str, host: str, plain: bool, asked: bool
) -> None:
    assert may_be_asked(realm, host, "", plain_http=plain) == asked
    if not asked:
        assert not may_know(realm, host, plain_http=plain) or realm.startswith("https://")


def test_m3_the_site_may_name_a_token_server() -> None:
    assert may_be_asked(
        "http://tokens.site:8080/x", "harbor.site", "tokens.site:8080", plain_http=True
    )
    assert may_be_asked("https://10.0.0.7/x", "harbor.site", "10.0.0.7", plain_http=False)


def test_m3_another_port_gets_no_password_and_is_not_asked(hostile: tuple[Registry, str]) -> None:
    client, host = hostile
    other = f"http://127.0.0.1:{int(host.rpartition(':')[2]) ^ 1}/token"
    Hostile.paths["/manifests/"] = (401, {"WWW-Authenticate": f'Bearer realm="{other}"'}, b"{}")
    with pytest.raises(RegistryError, match="is not asked"):
        client.look_up(Base(image=IMAGE))
    assert all(not header for _, header in Hostile.seen)


def test_m3_a_token_server_that_sends_elsewhere_is_not_followed(
    hostile: tuple[Registry, str],
) -> None:
    client, host = hostile
    Hostile.paths |= {
        "/manifests/": (401, {"WWW-Authenticate": f'Bearer realm="http://{host}/token"'}, b"{}"),
        "/token": (302, {"Location": f"http://{host}/elsewhere"}, b""),
        "/elsewhere": (200, {}, b'{"token": "secret-of-somebody"}'),
    }
    with pytest.raises(RegistryError, match="redirects to another place"):
        client.look_up(Base(image=IMAGE))
    assert not any("/elsewhere" in path for path, _ in Hostile.seen)


@pytest.mark.parametrize("token", ["a\r\nX: y", "a b", 5, {"x": 1}, "\u20ac"])
def test_m3_a_token_is_a_header_and_no_more(hostile: tuple[Registry, str], token: object) -> None:
    client, host = hostile
    Hostile.paths |= {
        "/manifests/": (401, {"WWW-Authenticate": f'Bearer realm="http://{host}/token"'}, b"{}"),
        "/token": (200, {}, json.dumps({"token": token}).encode()),
    }
    with pytest.raises(RegistryError):
        client.look_up(Base(image=IMAGE))


@pytest.mark.parametrize(
    "bad", ["\x1b]0;x\x07", "\x9b2J", "\u202eabc", "\u2066", "\x00", "\x7f", "\r"]
)
def test_m4_what_commands_a_terminal_is_not_printed(
    bad: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from hpcstack.cli.session import answer, echo

    echo(f"a{bad}b\nc\td")
    answer({"x": bad}, False, lambda: f"x{bad}")
    answer({"x": bad}, True, lambda: "")
    out = capsys.readouterr().out
    assert bad not in out
    assert "c\td" in out
    assert bad not in sanitize_for_terminal(bad)


@pytest.mark.parametrize(
    "challenge",
    [
        "Bearer " + "a" * 60_000,
        'Bearer realm="' + "x" * 60_000,
        '="' * 30_000,
        "a " * 30_000,
        "Basic " + "a=b,=" * 10_000,
        'Basic a="' + "\\\\" * 30_000,
    ],
)
def test_m3_a_challenge_is_read_in_no_time(challenge: str) -> None:

    from hpcstack.oci.challenges import choose_challenge

    began = processor_seconds()
    choose_challenge(challenge)
    assert processor_seconds() - began < 1


def test_m5_an_answer_that_drips_is_given_up(
    hostile: tuple[Registry, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    from hpcstack.oci import protocol

    def drip(self: Hostile) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "100000")
        self.end_headers()
        with contextlib.suppress(OSError):
            for _ in range(100):
                self.wfile.write(b"x")
                time.sleep(0.1)

    monkeypatch.setattr(Hostile, "do_GET", drip)
    monkeypatch.setattr(protocol, "READ_S", 1.0)
    began = time.monotonic()
    with pytest.raises(RegistryError, match="has not finished"):
        hostile[0].look_up(Base(image=IMAGE))
    assert time.monotonic() - began < 9


def test_m5_tags_are_counted(
    hostile: tuple[Registry, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from hpcstack.oci import client as registry

    monkeypatch.setattr(registry, "MAX_TAGS", 10)
    Hostile.paths["/tags/"] = (200, {}, json.dumps({"tags": [f"t{n}" for n in range(11)]}).encode())
    with pytest.raises(RegistryError, match="lists more than 10 entries"):
        hostile[0].tags(Base(image=IMAGE))


@pytest.mark.parametrize(
    "where", ["http://[", "http://a..b/", "https://\u00e9" + "a" * 70 + "/", "http://xn--\xff/"]
)
def test_redirects_to_nowhere_are_refusals(hostile: tuple[Registry, str], where: str) -> None:
    Hostile.paths |= {"/": (302, {"Location": where}, b"")}
    client, _ = hostile
    client.tries = 1
    with pytest.raises(RegistryError):
        client.look_up(Base(image=IMAGE))
    with pytest.raises(RegistryError):
        list(client.blob(Base(image=IMAGE), f"sha256:{'0' * 64}", 0))
    assert client.ping("nvcr.io").status in (0, 302)
