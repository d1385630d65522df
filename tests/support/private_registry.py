"""A second registry over the testbed's own images that wants a login, and writes down what it sent."""

from __future__ import annotations

import re
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

LINE = re.compile(r'"(GET|HEAD|POST) (\S+) HTTP/[0-9.]+" (\d+) (\d+)')


@dataclass
class PrivateRegistry:
    """Debian's docker-registry on PORT of all addresses; {user: password} are let in."""

    folder: Path
    storage: Path
    port: int
    logins: dict[str, str]
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @classmethod
    def address(cls, testbed: Path) -> str:
        """HOST:PORT as TESTBED's site.yaml names it, and its nodes reach it."""
        found = re.search(
            r"^  (\S+):([0-9]+): \{plain_http: true\}$",
            (testbed / "etc/site.yaml").read_text(),
            re.M,
        )
        assert found, "site.yaml names no registry for tests: ci/testbed up --tests"
        return f"{found[1]}:{found[2]}"

    @property
    def log(self) -> Path:
        return self.folder / "registry.log"

    def start(self) -> PrivateRegistry:
        lines = [f"{user}:{bcrypt(password)}\n" for user, password in self.logins.items()]
        (self.folder / "htpasswd").write_text("".join(lines))
        (self.folder / "registry.yml").write_text(
            "version: 0.1\nlog: {level: error, accesslog: {disabled: false}}\n"
            f"storage: {{filesystem: {{rootdirectory: {self.storage}}}}}\nhttp: {{addr: "
            f"':{self.port}'}}\n"
            f"auth: {{htpasswd: {{realm: private, path: {self.folder}/htpasswd}}}}\n"
        )
        with self.log.open("ab") as log:
            argv = ["docker-registry", "serve", str(self.folder / "registry.yml")]
            self.process = subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True)
        await_registry(self.process, self.port, self.log)
        return self

    def stop(self) -> None:
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None

    def sent(self) -> list[tuple[str, str, int, int]]:
        """(method, path, status, bytes) of each answer so far."""
        found = LINE.findall(self.log.read_text())
        return [(method, path, int(status), int(size)) for method, path, status, size in found]

    def blob_bytes(self) -> int:
        return sum(
            size
            for method, path, status, size in self.sent()
            if method == "GET" and "/blobs/" in path and status < 300
        )

    def manifests(self) -> int:
        """Requests for a manifest that were answered."""
        return sum("/manifests/" in path and status == 200 for _, path, status, _ in self.sent())

    def forget(self) -> None:
        self.log.write_text("")


def await_registry(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Wait until PROCESS answers on PORT, if only that it wants a login. Where another server has
    that port, ours has ended: its answer does not count.
    """
    for _ in range(100):
        if answers(port):
            break
        time.sleep(0.1)

    time.sleep(0.1)
    assert process.poll() is None and answers(port), log.read_text()


def answers(port: int) -> bool:
    try:
        urlopen(f"http://127.0.0.1:{port}/v2/", timeout=2)
    except HTTPError:
        return True
    except URLError:
        return False
    return True


def bcrypt(password: str) -> str:
    """As htpasswd -B writes it, by the system's own crypt(3)."""
    argv = ["perl", "-e", "print crypt($ARGV[0], q($2y$05$abcdefghijklmnopqrstuu))", password]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout
