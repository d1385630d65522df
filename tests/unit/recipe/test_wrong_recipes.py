"""Forty and more ways to write a recipe wrong: each is refused by the real command line, at its
line, in a useful sentence, with exit code 2 and never a traceback.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcstack.cli import main

GOOD = """\
apiVersion: hpcstack/v1
name: demo
version: "1.0"
summary: A demo
base: {image: "nvcr.io/nvidia/pytorch:24.11-py3"}
packages:
  apt: [infiniband-diags]
  pip: [deepspeed==0.19.8]
  source:
    - name: tool
      git: https://example.org/tool.git
      commit: 0123456789abcdef0123456789abcdef01234567
      build: make install
  conda:
    packages: [numpy=2.1]
files:
  - path: /etc/demo.conf
    content: "a = 1"
    mode: "0644"
run:
  - name: greet
    command: echo hello
environment:
  A: "1"
  PATH: {prepend: /opt/demo/bin}
labels: {org.example.contact: someone}
entrypoint: [/bin/sh]
module: {commands: [tool]}
launch: {mode: plain}
lifecycle: {deprecate: 2026-01-01, remove: 2026-06-01}
tests: [node]
"""
LONE = '"\\ud800"'

CASES = [
    # (what is there, what is written instead, line, what is said)
    ("version: \"1.0\"", "version: [1]", 3, "version: must be text"),
    ("name: demo", "name: Demo", 2, "name: string should match pattern"),
    ("name: demo", "name: other", 2, "the file of other-1.0 must be named other-1.0.yaml, or other.yaml"),
    ("version: \"1.0\"", "versoin: \"1.0\"", 3, "unknown key 'versoin' (did you mean 'version'?)"),
    ("version: \"1.0\"\n", "", 1, "the key 'version' is missing"),
    ("summary: A demo", "summary: ", 4, "summary: must be text"),
    ("summary: A demo", f"summary: {'x' * 101}", 4, "at most 100 characters"),
    ("summary: A demo", "summary: \"a\\nb\"", 4, "newlines and control characters"),
    ("summary: A demo", f"summary: {LONE}", 4, "not YAML"),
    ("name: demo", "name: demo\nname: demo", 3, "the key 'name' is given twice"),
    ("name: demo", "name: &x demo", 2, "aliases and anchors"),
    ("name: demo", "name: !!str demo", 2, "the tag tag:yaml.org,2002:str is not supported"),
    ("apiVersion: hpcstack/v1", "apiVersion: hpcstack/v2", 1, "input should be 'hpcstack/v1'"),
    ("24.11-py3", "24.11-py3 ", 5, "write REGISTRY/REPOSITORY:TAG"),
    ("nvcr.io/nvidia/pytorch:24.11-py3", "ubuntu", 5, "write REGISTRY/REPOSITORY:TAG"),
    ("py3\"}", "py3\", platforms: [linux/amd46]}", 5, "base.platforms[0]: input should be 'linux/amd64'"),
    ("py3\"}", "py3\", platform: [x]}", 5, "unknown key 'platform' (did you mean 'platforms'?)"),
    ("[infiniband-diags]", "[\"a b\"]", 7, "packages.apt[0]: not an apt package"),
    ("[infiniband-diags]", "[ibutils, ibutils=1.0]", 7, "ibutils is given twice, as 'ibutils' and 'ibutils=1.0'"),
    ("[infiniband-diags]", "infiniband-diags", 7, "packages.apt: must be a list"),
    ("deepspeed==0.19.8", "deepspeed=0.19", 8, "not a pip requirement"),
    ("deepspeed==0.19.8", "a @ https://x.org/a.whl", 8, "a URL cannot be locked"),
    ("[deepspeed==0.19.8]", "[Deep_Speed==1, deep-speed==2]", 8, "deep-speed is given twice"),
    ("https://example.org/tool.git", "https://me:secret@example.org/t.git", 11, "without a password"),
    ("https://example.org/tool.git", "--upload-pack=x", 11, "write https://HOST/PATH"),
    ("commit: 0123456789abcdef0123456789abcdef01234567", "commit: 0123456", 12, "all 40 hex digits"),
    ("      commit: 0123456789abcdef0123456789abcdef01234567\n", "", 10, "name a commit, or a ref"),
    ("build: make install", "build: \"make\\x07\"", 13, "control characters are not allowed"),
    ("numpy=2.1", "\"numpy; rm\"", 15, "not a conda package"),
    ("packages: [numpy=2.1]", "channels: [\"a b\"]", 15, "not a conda channel"),
    ("/etc/demo.conf", "etc/demo.conf", 17, "write an absolute path of the image"),
    ("/etc/demo.conf", "/etc/../demo", 17, "without '.', '..'"),
    ("[infiniband-diags]", "[\"curl\\n\"]", 7, "packages.apt[0]: not an apt package"),
    ("[tool]", "[\"tool\\n\"]", 28, "not a command's name"),
    ("  A: \"1\"", "  \"A\\n\": x", 24, "is not a variable's name"),
    ("{org.example.contact: someone}", "{\"org.x\\n\": y}", 26, "is not a label's name"),
    ("24.11-py3\"}", "24.11-py3\\n\"}", 5, "write REGISTRY/REPOSITORY:TAG"),
    ("/etc/demo.conf", "/opt/./hpcstack/build/lib.sh", 17, "write an absolute path"),
    ("/etc/demo.conf", "/opt/hpcstack", 17, "this place belongs to hpcstack"),
    ("/etc/demo.conf", "/opt/hpcstack/x", 17, "this place belongs to hpcstack"),
    ("content: \"a = 1\"", "source: ../secret", 18, "a source lies beside the recipe or below"),
    ("content: \"a = 1\"", "source: nothing.txt", 18, "no such file"),
    ("\"0644\"", "\"0999\"", 19, "files[0].mode: string should match pattern"),
    ("command: echo hello", "comand: echo hello", 22, "unknown key 'comand' (did you mean 'command'?)"),
    ("  A: \"1\"", "  A-B: \"1\"", 24, "'A-B' is not a variable's name"),
    ("  A: \"1\"", "  SLURM_X: \"1\"", 24, "SLURM_X belongs to the container runtime or to Slurm"),
    ("  A: \"1\"", "  A: \"${HOME}\"", 24, "Enroot would replace ${HOME}"),
    ("  A: \"1\"", "  A: '\"quoted\"'", 24, "Enroot would take away the quotes"),
    ("  A: \"1\"", "  A: {prepend: \"'x\"}", 24, "neither begins nor ends with a quote"),
    ("  A: \"1\"", "  A: 'a\\b'", 24, "Enroot takes backslashes out"),
    ("https://example.org/tool.git", "https://ghp_token@github.com/o/r.git", 11, "without a password or token"),
    ("  A: \"1\"", "  A: {set: a, prepend: b}", 24, "`set` replaces the value"),
    ("{prepend: /opt/demo/bin}", "{preprend: /x}", 25, "unknown key 'preprend' (did you mean 'prepend'?)"),
    ("{org.example.contact: someone}", "{org.hpcstack.x: y}", 26, "org.hpcstack.* is ours"),
    ("{org.example.contact: someone}", "{a: \"{{x}}\"}", 26, "build arguments to Apptainer"),
    ("[/bin/sh]", "/bin/sh", 27, "entrypoint: must be a list"),
    ("[tool]", "[python]", 28, "would shadow the host's own python"),
    ("mode: plain", "mode: mpirun", 29, "launch.mode: input should be 'torchrun', 'deepspeed'"),
    ("deprecate: 2026-01-01", "deprecate: January", 30, "lifecycle.deprecate: input should be a valid date"),
    ("remove: 2026-06-01", "remove: 2025-06-01", 30, "`remove` lies before `deprecate`"),
    ("tests: [node]", "tests: [nodes]", 31, "no check or family 'nodes' (did you mean 'node'?)"),
    ("tests: [node]", "tests: [node", 32, "not YAML"),
    ("name: demo", "name: demo\nextends: _nothing", 3, "there is nothing to extend named '_nothing'"),
    ("name: demo", "name: demo\nextends: demo-1.0", 3, "a recipe cannot extend itself"),
    ("summary: A demo", "summary: A demo ${stack.versoin}", 4, "unknown ${stack.versoin} (did you mean 'version'?)"),
    ("name: demo", "name: demo\nmatrix: {version: [\"1\"]}", 4, "`version` is an axis of the matrix: say it there only"),
    ("name: demo", "name: demo\nmatrix: {flavour: [a]}", 3, "a matrix has `version`, `variant` or both"),
    ("name: demo", "name: demo\nmatrix: {variant: [a], exclude: [{variant: b}]}", 3, "excludes nothing: 'b' is no variant"),
    ("name: demo", "name: demo\nmatrix: {variant: [a], exclude: [{variant: a}]}", 3, "every stack is excluded"),
    ("name: demo", "name: demo\nmatrix: {variant: [a, a]}", 3, "a value is given twice"),
    ("name: demo", "name: demo\nmatrix: {variant: {a: {name: x}}}", 3, "`name` makes the stack's name: not here"),
    ("name: demo", "name: demo\nmatrix: {variant: {a: text}}", 3, "in a mapping, what it changes is a mapping"),
    ("name: demo", "- a list", 2, "not YAML"),
]  # fmt: skip


def test_the_good_one_is_good(tmp_path: Path) -> None:
    """By the command that people type; the others are refused in this process."""
    path = tmp_path / "demo-1.0.yaml"
    path.write_text(GOOD)
    argv = [sys.executable, "-m", "hpcstack", "lint", str(path)]
    home = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    done = subprocess.run(argv, capture_output=True, text=True, env=home, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("old", "new", "line", "says"), CASES, ids=range(len(CASES)))
def test_each_is_refused_at_its_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    old: str,
    new: str,
    line: int,
    says: str,
) -> None:
    assert old in GOOD
    path = tmp_path / "demo-1.0.yaml"
    path.write_text(GOOD.replace(old, new, 1))
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        main(["lint", str(path)])
    err = capsys.readouterr().err
    assert ended.value.code == 2, err
    assert "Traceback" not in err
    said = [
        entry for entry in err.splitlines() if f"demo-1.0.yaml:{line}:" in entry and says in entry
    ]
    assert said, err


def test_there_are_at_least_forty() -> None:
    assert len(CASES) >= 40
