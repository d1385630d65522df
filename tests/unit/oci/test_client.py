"""The registry client against a real HTTP server that misbehaves on purpose (faults that no
registry gives on demand).
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from conftest import make_site
from hpcstack.core.errors import RegistryError
from hpcstack.oci import client as registry
from hpcstack.oci.client import Registry
from hpcstack.oci.protocol import choose_pause, may_know
from hpcstack.recipe.model import Base

CONFIG = json.dumps({"os": "linux", "architecture": "amd64", "config": {"Env": ["A=1"]}}).encode()
IMAGE = "nvcr.io/nvidia/pytorch:24.11-py3"


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


MANIFEST = json.dumps(
    {"schemaVersion": 2, "config": {"digest": digest(CONFIG)}, "layers": []}
).encode()
INDEX = json.dumps(
    {
        "manifests": [
            {"digest": digest(MANIFEST), "platform": {"os": "linux", "architecture": "amd64"}}
        ]
    }
).encode()


class Fake(BaseHTTPRequestHandler):
    """`faults` maps a part of a path to a list of statuses that are given first; `realm` asks for a
    token.
    """

    faults: dict[str, list[int]] = {}
    realm = ""
    content: dict[str, bytes] = {}
    seen: list[tuple[str, str]] = []
    pages: list[list[str]] = []
    next_host = ""
    breaks: list[str] = []
    expire_after = 0

    def do_GET(self) -> None:
        type(self).seen.append((self.path, self.headers.get("Authorization", "")))
        if self.path.startswith("/token"):
            type(self).given = 0
            self.send(200, b'{"token": "t0k"}')
            return
        if type(self).breaks:
            self.break_off(type(self).breaks.pop(0))
            return
        if type(self).expire_after and self.headers.get("Authorization"):
            type(self).given += 1
            if type(self).given > type(self).expire_after:
                self.send(401, b"{}", {"WWW-Authenticate": type(self).realm})
                return
        if "/tags/list" in self.path:
            self.tags()
            return
        for part, statuses in type(self).faults.items():
            if part in self.path and statuses:
                self.send(statuses.pop(0), b"{}", {"Retry-After": "0"})
                return
        if type(self).realm and self.headers.get("Authorization") != "Bearer t0k":
            self.send(401, b"{}", {"WWW-Authenticate": type(self).realm})
            return
        body = next(
            (body for part, body in type(self).content.items() if self.path.endswith(part)), None
        )
        self.send(200 if body is not None else 404, body or b"{}")

    given = 0

    def tags(self) -> None:
        """Page N of `pages`, with a Link to the next."""
        pages = type(self).pages
        number = int(self.path.partition("page=")[2] or 0)
        following = f"{type(self).next_host}{self.path.partition('?')[0]}?page={number + 1}"
        link = {"Link": f'<{following}>; rel="next"'} if number + 1 < len(pages) else {}
        self.send(200, json.dumps({"tags": pages[number]}).encode(), link)

    def break_off(self, how: str) -> None:
        """An answer that is torn in the middle, comes too late, or is none."""
        if how == "torn":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b'{"manif')
        elif how == "slow":
            time.sleep(1.0)
        self.close_connection = True

    def send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def fake(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[tuple[type[Fake], Registry, str]]:
    class Mine(Fake):
        faults: dict[str, list[int]] = {}
        content = {"24.11-py3": INDEX, digest(MANIFEST): MANIFEST, digest(CONFIG): CONFIG}
        seen: list[tuple[str, str]] = []
        pages: list[list[str]] = []
        breaks: list[str] = []

    server = ThreadingHTTPServer(("127.0.0.1", 0), Mine)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    host = f"127.0.0.1:{server.server_port}"
    monkeypatch.setattr(registry, "BACK_OFF", 0.01)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    site = make_site(tmp_path, registries={"nvcr.io": {"mirror": host, "plain_http": True}})
    yield Mine, Registry(site, timeout=2), host
    server.shutdown()
    server.server_close()


Given = tuple[type[Fake], Registry, str]


def test_the_digests_and_the_config(fake: Given) -> None:
    _, client, host = fake
    answer = client.look_up(Base(image=IMAGE))
    assert answer.index_digest == digest(INDEX)
    assert answer.manifests == {"linux/amd64": digest(MANIFEST)}
    assert answer.configs["linux/amd64"]["config"]["Env"] == ["A=1"]
    assert answer.answered_by == host


def test_a_single_manifest_without_an_index(fake: Given) -> None:
    server, client, _ = fake
    server.content = {**server.content, "24.11-py3": MANIFEST}
    assert client.look_up(Base(image=IMAGE)).manifests == {"linux/amd64": digest(MANIFEST)}


def test_a_busy_registry_is_asked_again(fake: Given) -> None:
    server, client, _ = fake
    server.faults = {"24.11-py3": [429, 503], "blobs": [500]}
    assert client.look_up(Base(image=IMAGE)).index_digest == digest(INDEX)


def test_one_that_stays_busy_is_given_up(fake: Given) -> None:
    server, client, host = fake
    server.faults = {"24.11-py3": [503] * 9}
    with pytest.raises(RegistryError, match=f"{host} answered 503 for {IMAGE}"):
        client.look_up(Base(image=IMAGE))


def test_wrong_bytes_are_refused(fake: Given) -> None:
    server, client, _ = fake
    server.content = {**server.content, digest(CONFIG): CONFIG + b" "}
    with pytest.raises(RegistryError, match="do not match"):
        client.look_up(Base(image=IMAGE))


def test_a_refusal_names_registry_image_and_login(fake: Given) -> None:
    server, client, host = fake
    server.realm = "Basic"
    with pytest.raises(RegistryError) as caught:
        client.look_up(Base(image=IMAGE))
    assert f"{host} refuses {IMAGE} (401)" in caught.value.message
    assert f"docker login -u '$oauthtoken' {host}" in caught.value.hint


def test_a_tag_that_is_not_there(fake: Given) -> None:
    _, client, host = fake
    with pytest.raises(RegistryError, match=f"{host} has no nvcr.io/nvidia/pytorch:99.99-py3"):
        client.look_up(Base(image="nvcr.io/nvidia/pytorch:99.99-py3"))


def test_a_platform_that_is_not_there(fake: Given) -> None:
    _, client, _ = fake
    with pytest.raises(RegistryError, match="for linux/amd64, not for linux/arm64"):
        client.look_up(Base(image=IMAGE, platforms=("linux/arm64",)))


def test_a_registry_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "BACK_OFF", 0.01)
    site = make_site(
        tmp_path, registries={"nvcr.io": {"mirror": "127.0.0.1:1", "plain_http": True}}
    )
    with pytest.raises(RegistryError, match="127.0.0.1:1 cannot be reached"):
        Registry(site).look_up(Base(image=IMAGE))


def test_a_token_is_fetched_once_where_the_realm_says(fake: Given) -> None:
    server, client, host = fake
    server.realm = f'Bearer realm="http://{host}/token?scope=repository:nvidia/pytorch:pull,push"'
    client.look_up(Base(image=IMAGE))
    tokens = [path for path, _ in server.seen if path.startswith("/token")]
    assert tokens == ["/token?scope=repository%3Anvidia%2Fpytorch%3Apull"]


def test_the_users_own_credentials_are_sent_for_a_token(fake: Given, tmp_path: Path) -> None:
    import base64

    server, client, host = fake
    auth = base64.b64encode(b"$oauthtoken:k3y").decode()
    (tmp_path / "config.json").write_text(json.dumps({"auths": {host: {"auth": auth}}}))
    server.realm = f'Bearer realm="http://{host}/token"'
    client.look_up(Base(image=IMAGE))
    assert ("Basic " + auth) in [
        header for path, header in server.seen if path.startswith("/token")
    ]


@pytest.mark.parametrize(
    ("realm", "host", "plain_http", "may"),
    [
        ("https://nvcr.io/proxy_auth", "nvcr.io", False, True),
        ("https://auth.docker.io/token", "registry-1.docker.io", False, True),
        ("https://evil.co.uk/token", "reg.site.co.uk", False, False),
        ("https://auth.reg.site.org/token", "reg.site.org", False, True),
        ("https://other.azurecr.io/token", "mine.azurecr.io", False, False),
        ("https://authn.nvidia.com/token", "nvcr.io", False, False),
        ("http://nvcr.io/proxy_auth", "nvcr.io", False, False),
        ("http://127.0.0.1:5000/token", "127.0.0.1:5000", True, True),
        ("https://10.0.0.1/token", "99.0.0.1", False, False),
    ],
)
def test_a_key_goes_to_its_registrys_own_domain_only(
    realm: str, host: str, plain_http: bool, may: bool
) -> None:
    assert bool(may_know(realm, host, plain_http=plain_http)) is may


def test_a_login_page_is_no_answer(fake: Given) -> None:
    server, client, host = fake
    server.content = {**server.content, "24.11-py3": b"<html>please log in</html>"}
    with pytest.raises(
        RegistryError, match=f"{host} answered with something that is not a registry's answer"
    ):
        client.look_up(Base(image=IMAGE))


def test_a_mirror_may_have_a_path(fake: Given, tmp_path: Path) -> None:
    server, _, host = fake
    site = make_site(
        tmp_path, registries={"nvcr.io": {"mirror": f"{host}/proxy", "plain_http": True}}
    )
    Registry(site).look_up(Base(image=IMAGE))
    assert server.seen[0][0].startswith("/v2/proxy/nvidia/pytorch/manifests/")


def test_a_mirror_that_needs_no_proxy_is_asked_directly(fake: Given, tmp_path: Path) -> None:
    _, _, host = fake
    build = {"proxy": {"http": "http://127.0.0.1:1", "no": "127.0.0.1"}}
    site = make_site(
        tmp_path, registries={"nvcr.io": {"mirror": host, "plain_http": True}}, build=build
    )
    assert Registry(site).look_up(Base(image=IMAGE)).answered_by == host


def test_tags_come_page_by_page(fake: Given) -> None:
    server, client, _ = fake
    server.pages = [["24.01-py3", "24.11-py3"], ["25.10-py3"], []]
    assert client.tags(Base(image=IMAGE)) == ["24.01-py3", "24.11-py3", "25.10-py3"]


def test_a_list_of_tags_that_leads_elsewhere_is_not_followed(fake: Given) -> None:
    server, client, _ = fake
    server.pages = [["24.01-py3"], ["x"]]
    server.next_host = "http://evil.example"
    with pytest.raises(RegistryError, match=r"continues its list of tags at evil\.example"):
        client.tags(Base(image=IMAGE))


def test_a_list_of_tags_that_never_ends_does(fake: Given, monkeypatch: pytest.MonkeyPatch) -> None:
    server, client, _ = fake
    monkeypatch.setattr(registry, "MAX_PAGES", 5)
    server.pages = [["again"]] * 100
    with pytest.raises(RegistryError, match="on more than 5 pages"):
        client.tags(Base(image=IMAGE))


def test_what_a_base_holds(fake: Given) -> None:
    server, client, _ = fake
    config = json.dumps(
        {"os": "linux", "architecture": "amd64", "config": {"Env": ["CUDA_VERSION=13.0.2"]}}
    ).encode()
    manifest = json.dumps(
        {"schemaVersion": 2, "config": {"digest": digest(config)}, "layers": []}
    ).encode()
    server.content = {"24.11-py3": manifest, digest(config): config}
    assert client.facts(Base(image=IMAGE)) == {"CUDA": "13.0.2"}


@pytest.mark.parametrize("fault", ["torn", "slow", "closed"])
def test_answers_that_break_off_are_asked_again(fake: Given, fault: str) -> None:
    server, client, _ = fake
    client.timeout = 0.5
    server.breaks = [fault, fault]
    assert client.look_up(Base(image=IMAGE)).index_digest == digest(INDEX)


def test_answers_that_always_break_off_are_said(fake: Given) -> None:
    server, client, host = fake
    server.breaks = ["closed"] * 50
    with pytest.raises(RegistryError, match=f"{host} cannot be reached"):
        client.look_up(Base(image=IMAGE))


@pytest.mark.parametrize(
    "index",
    [b'{"manifests": [{"digest": "evil$(id)", "platform": {"os": "linux", "architecture": "amd64"}}]}', b"[" * 30000,
     b"[]", b'{"manifests": []}', b'{"manifests": [{"digest": "x"}]}', b'{"config": {}}', b"null", b'{"manifests": 7}',
     b'{"manifests": [{"digest": "sha256:zz", "platform": {"os": "linux", "architecture": "amd64"}}]}'],
)  # fmt: skip
def test_a_registry_that_talks_nonsense_is_refused_without_a_traceback(
    fake: Given, index: bytes
) -> None:
    server, client, _ = fake
    server.content = {**server.content, "24.11-py3": index}
    with pytest.raises(RegistryError):
        client.look_up(Base(image=IMAGE))


def test_a_token_that_expires_is_fetched_anew(fake: Given) -> None:
    server, client, host = fake
    server.realm = f'Bearer realm="http://{host}/token"'
    server.expire_after = 1
    client.look_up(Base(image=IMAGE))
    assert len([path for path, _ in server.seen if path.startswith("/token")]) >= 2


def test_enroots_login_is_sent_for_a_token(
    fake: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import base64

    server, client, host = fake
    monkeypatch.setenv("ENROOT_CONFIG_PATH", str(tmp_path))
    (tmp_path / ".credentials").write_text("machine 127.0.0.1 login $oauthtoken password enr00t\n")
    server.realm = f'Bearer realm="http://{host}/token"'
    client.look_up(Base(image=IMAGE))
    auth = base64.b64encode(b"$oauthtoken:enr00t").decode()
    assert f"Basic {auth}" in [header for path, header in server.seen if path.startswith("/token")]


@pytest.mark.parametrize(
    "inner",
    [{"Env": [1]}, {"Env": "PATH=/bin"}, {"Labels": {"x": 1}}, {"Labels": ["x"]}, {"Entrypoint": "/bin/sh"}, {"WorkingDir": 5},
     {"Env": ["A=\ud800"]}, [], "text"],
)  # fmt: skip
def test_an_image_config_of_other_types_is_refused(fake: Given, inner: object) -> None:
    server, client, _ = fake
    config = json.dumps({"os": "linux", "architecture": "amd64", "config": inner}).encode()
    manifest = json.dumps(
        {"schemaVersion": 2, "config": {"digest": digest(config)}, "layers": []}
    ).encode()
    server.content = {"24.11-py3": manifest, digest(config): config}
    if inner == []:
        assert client.look_up(Base(image=IMAGE)).configs  # nothing is said
        return
    with pytest.raises(RegistryError, match="not a registry's answer"):
        client.look_up(Base(image=IMAGE))


@pytest.mark.parametrize("page", [[1, 2], 5, "text", [["x"]], ["a b", "$(id)", "1.\u0663"]])
def test_what_is_no_tag_is_left_out(fake: Given, page: Any) -> None:
    server, client, _ = fake
    server.pages = [page]
    if isinstance(page, list):
        assert client.tags(Base(image=IMAGE)) == []
    else:
        with pytest.raises(RegistryError):
            client.tags(Base(image=IMAGE))


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("", 0.5),
        ("5", 5),
        ("99999", 30),
        ("Fri, 31 Dec 1999 23:59:59 GMT", 0.5),
        ("0", 0),
        ("Fri, 31 Dec 2199 23:59:59 GMT", 30),
        ("soon", 0.5),
        ("9" * 200, 30),
    ],
)
def test_a_registry_says_how_long_to_wait_by_a_number_or_a_date(said: str, seconds: float) -> None:
    assert choose_pause(said, 0.5) == seconds
