"""What a recipe says of an Apptainer definition, and what it leaves out, by line."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcstack.core.errors import InputError
from hpcstack.draft.from_definition import draft_definition
from hpcstack.draft.recipe_draft import RecipeDraft

WHOLE = """\
# a comment
Bootstrap: docker
From: nvcr.io/nvidia/pytorch:{{ TAG }}   # the month

%arguments
    TAG=24.11-py3

%files
    setup.sh /opt/setup.sh
    gone /opt/gone

%post
    # what is needed
    bash /opt/setup.sh | cat
    echo 'export X=1' >>$APPTAINER_ENVIRONMENT
    make -C /opt/x

%environment
    export A=1
    export PATH=/opt/x/bin:$PATH
    export B="$A b"
    export C=$(date)
    if true; then export D=1; fi

%labels
    org.example.contact me
    Bad!Name x

%runscript
    exec /opt/x/bin/run --now "$@"

%help
    Trains things.

%test
    true
%setup
%startscript
    sleep 1
"""


def draft(
    folder: Path, text: str, arguments: dict[str, str] | None = None, target: str = ""
) -> RecipeDraft:
    path = folder / "x.def"
    path.write_text(text)
    return draft_definition(path, folder, arguments or {}, target, "linux/amd64")


def test_each_section(tmp_path: Path) -> None:
    (tmp_path / "setup.sh").write_text("true\n")
    found = draft(tmp_path, WHOLE)
    assert found.image == "nvcr.io/nvidia/pytorch:24.11-py3"
    assert list(found.files) == ["/opt/setup.sh"]
    [step] = found.run
    lines = step["command"].splitlines()
    assert lines[-1] == "make -C /opt/x"
    assert "bash /opt/setup.sh | cat" in lines
    assert found.environment == {"A": "1", "PATH": {"prepend": ["/opt/x/bin"]}, "B": "1 b"}
    assert found.labels == {"org.example.contact": "me"}
    assert found.entrypoint == ["/opt/x/bin/run", "--now"]
    assert found.summary == "Trains things."
    numbers = [one.place.line for one in found.left_out]
    assert sorted(numbers) == [10, 15, 22, 23, 27, 35, 38]


def test_packages_alone_become_packages(tmp_path: Path) -> None:
    found = draft(
        tmp_path,
        "Bootstrap: docker\nFrom: ubuntu:24.04\n%post\n    apt-get -y update\n"
        "    apt-get install -y git\n    pip install einops\n",
    )
    assert (found.apt, found.pip, found.run) == (["git"], ["einops"], [])


def test_arguments(tmp_path: Path) -> None:
    assert draft(tmp_path, WHOLE, {"TAG": "25.10-py3"}).image.endswith(":25.10-py3")
    with pytest.raises(InputError, match="has no {{ TAGS }}"):
        draft(tmp_path, WHOLE, {"TAGS": "x"})
    with pytest.raises(InputError, match="{{ X }} has no value"):
        draft(tmp_path, "Bootstrap: docker\nFrom: a:{{ X }}\n")


def test_stages(tmp_path: Path) -> None:
    text = (
        "Bootstrap: docker\nFrom: a:1\nStage: build\n%post\n  make\n\n"
        "Bootstrap: docker\nFrom: b:2\nStage: final\n%files from build\n  /x /y\n%post\n  go\n"
    )
    found = draft(tmp_path, text)
    assert found.image == "docker.io/library/b:2"
    assert [one["name"] for one in found.run] == ["post (x.def:12)"]
    assert [(one.place.line, one.why) for one in found.left_out] == [
        (10, "a recipe has one stage: from build")
    ]
    assert [one.place.line for one in found.notes] == [1]
    assert draft(tmp_path, text, target="build").image == "docker.io/library/a:1"
    with pytest.raises(InputError, match="has no stage x"):
        draft(tmp_path, text, target="x")


def test_a_base_that_is_a_file_is_left_out(tmp_path: Path) -> None:
    found = draft(tmp_path, "Bootstrap: localimage\nFrom: base.sif\n%post\n  make\n")
    assert found.image == ""
    assert "hpcstack adopt" in found.left_out[0].instead


def test_what_is_no_definition_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a definition file"):
        draft(tmp_path, "hello\n")


# -- what somebody with fresh eyes found

HEAD = "Bootstrap: docker\nFrom: ubuntu:24.04\n"


def test_files_go_where_cp_puts_them(tmp_path: Path) -> None:
    (tmp_path / "mydir").mkdir()
    (tmp_path / "mydir/x").write_text("")
    (tmp_path / "a.txt").write_text("")
    (tmp_path / ".dockerignore").write_text("a.txt\n")
    found = draft(
        tmp_path,
        f"{HEAD}%files\n  mydir /opt\n  mydir /new\n  a.txt /opt\n  a.txt /opt/a # see /etc/x\n  a.txt\n",
    )
    assert sorted(found.files) == ["/a.txt", "/new/x", "/opt/a", "/opt/a.txt", "/opt/mydir/x"]


def test_two_posts_are_one_script(tmp_path: Path) -> None:
    found = draft(
        tmp_path,
        f"{HEAD}%post\n  add-apt-repository x\n%labels\n  a b\n%post\n  apt-get install -y y\n",
    )
    assert found.apt == []
    [step] = found.run
    assert step["command"] == "add-apt-repository x\napt-get install -y y\n"


def test_variables_that_post_writes_are_told_and_its_script_stays_whole(tmp_path: Path) -> None:
    found = draft(
        tmp_path,
        f'{HEAD}%post\n  echo "export A=1" \\\n    >> $APPTAINER_ENVIRONMENT\n  make install\n',
    )
    assert [one.place.line for one in found.left_out] == [5]
    [step] = found.run
    assert step["command"].endswith(
        'echo "export A=1" \\\n  >> $APPTAINER_ENVIRONMENT\nmake install\n'
    )
    assert step["command"].startswith("APPTAINER_ENVIRONMENT=/dev/null\n")


@pytest.mark.parametrize("shell", ["-c /usr/bin/fish", "-c /bin/zsh", "-x"])
def test_another_shell_is_left_out(tmp_path: Path, shell: str) -> None:
    found = draft(tmp_path, f"{HEAD}%post {shell}\n  a\n")
    assert (found.run, len(found.left_out)) == ([], 1)


@pytest.mark.parametrize(
    "lines",
    [
        ["export A=1;"],
        ["export D=a&&true"],
        ["A=~/x"],
        ["export B=1:\\", "2"],
        ["if [ -d /x ]; then", "export A=1", "fi"],
        ["export A=`date`"],
        [". /opt/env.sh"],
        ["export A=1 B=2"],
    ],
)
def test_what_a_shell_would_compute_is_left_out(tmp_path: Path, lines: list[str]) -> None:
    found = draft(tmp_path, HEAD + "%environment\n" + "\n".join(lines) + "\n  export LAST=1\n")
    assert found.environment == {"LAST": "1"}
    assert len(found.left_out) == len(lines)


@pytest.mark.parametrize(
    "line",
    [
        'A=1 python "$@"',
        'exec -a me python "$@"',
        'exec ls * "$@"',
        'exec python -c \'x "$@"',
        "python",
    ],
)
def test_a_start_that_is_more_than_a_program_is_left_out(tmp_path: Path, line: str) -> None:
    found = draft(tmp_path, f"{HEAD}%runscript\n  {line}\n")
    assert (found.entrypoint, len(found.left_out)) == ([], 1)


def test_a_help_that_shows_a_definition_is_no_stage(tmp_path: Path) -> None:
    found = draft(tmp_path, f"{HEAD}%help\n  Bootstrap: docker\n  From: debian\tnow\n")
    assert found.image == "docker.io/library/ubuntu:24.04"


def test_crlf_and_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "x.def"
    path.write_bytes(
        b"\xef\xbb\xbf" + f"{HEAD}%post\n  make # {{{{ W }}}}\n".encode().replace(b"\n", b"\r\n")
    )
    with pytest.raises(InputError, match="{{ W }} has no value"):
        draft_definition(path, tmp_path, {}, "", "linux/amd64")
    path.write_bytes(path.read_bytes().replace(b"make # {{ W }}", b"# {{ W }}\r\n  make"))
    found = draft_definition(path, tmp_path, {}, "", "linux/amd64")
    assert found.run[0]["command"].endswith("make\n")


def test_arguments_do_not_fill_the_memory(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="too long"):
        draft(tmp_path, HEAD + "%post\n" + "{{A}}\n" * 10_000, {"A": "x" * 100_000})
