"""What a recipe says of a Dockerfile, and what it leaves out, by line."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from hpcstack.core.errors import InputError
from hpcstack.draft.from_dockerfile import draft_dockerfile
from hpcstack.draft.recipe_draft import RecipeDraft, render_draft
from hpcstack.draft.words import split_words

AMD64 = "linux/amd64"
BASE = "FROM nvcr.io/nvidia/pytorch:24.11-py3\n"


def draft(
    folder: Path, text: str, arguments: dict[str, str] | None = None, target: str = ""
) -> RecipeDraft:
    path = folder / "Dockerfile"
    path.write_text(text)
    return draft_dockerfile(path, folder, arguments or {}, target, AMD64)


def left_out(found: RecipeDraft) -> list[tuple[int, str]]:
    return [(one.place.line, one.why) for one in found.left_out]


def run_step(found: RecipeDraft, number: int = 0, **variables: str) -> str:
    """What a step prints, run as hpcstack runs it: bash that ends at the first failure."""
    script = f"set -Eeuo pipefail\n{found.run[number]['command']}"
    done = subprocess.run(
        ["bash", "-c", script],
        env={"PATH": "/usr/bin:/bin", **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize(
    ("name", "image"),
    [
        ("ubuntu", "docker.io/library/ubuntu:latest"),
        ("pytorch/pytorch:2.6", "docker.io/pytorch/pytorch:2.6"),
        ("docker.io/python:3.12", "docker.io/library/python:3.12"),
        ("localhost:5000/a/b:1", "localhost:5000/a/b:1"),
        ("nvcr.io#nvidia/pytorch:24.11-py3", "nvcr.io/nvidia/pytorch:24.11-py3"),
        ("ghcr.io/a/b@sha256:" + "0" * 64, "ghcr.io/a/b@sha256:" + "0" * 64),
    ],
)
def test_the_base_gets_its_whole_name(tmp_path: Path, name: str, image: str) -> None:
    assert draft(tmp_path, f"FROM {name}\n").image == image


def test_arguments_choose_the_base(tmp_path: Path) -> None:
    text = "ARG TAG=24.11-py3\nARG BASE\nFROM ${BASE:-nvcr.io/nvidia/pytorch}:$TAG\n"
    assert draft(tmp_path, text).image == "nvcr.io/nvidia/pytorch:24.11-py3"
    given = draft(tmp_path, text, {"TAG": "25.10-py3"})
    assert given.image == "nvcr.io/nvidia/pytorch:25.10-py3"
    with pytest.raises(InputError, match="has no ARG TAGS"):
        draft(tmp_path, text, {"TAGS": "x"})
    with pytest.raises(InputError, match="its argument has no value"):
        draft(tmp_path, "ARG BASE\nFROM $BASE\n")
    with pytest.raises(InputError, match="FROM scratch"):
        draft(tmp_path, "FROM scratch\n")


def test_steps_that_only_install_become_packages(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("einops==0.8.0\n# why\nnumpy<2\n")
    found = draft(
        tmp_path,
        BASE
        + "ENV DEBIAN_FRONTEND=noninteractive\n"
        + "RUN apt-get update && apt-get install -y --no-install-recommends \\\n"
        + "      git \\\n      libaio-dev && rm -rf /var/lib/apt/lists/*\n"
        + "WORKDIR /app\nCOPY requirements.txt .\n"
        + "RUN pip install --no-cache-dir -r requirements.txt 'six>=1.16' && pip cache purge\n"
        + "RUN pip install --no-build-isolation flash-attn==2.7.4\n",
    )
    assert [one.place.line for one in found.notes] == [1]  # of the last WORKDIR
    assert found.apt == ["git", "libaio-dev"]
    assert found.pip == ["einops==0.8.0", "numpy<2", "six>=1.16", "flash-attn==2.7.4"]
    assert found.no_build_isolation == ["flash-attn"]
    assert found.run == []
    assert found.left_out == []


@pytest.mark.parametrize(
    "step",
    [
        "pip install -U torch",
        "pip install --index-url https://example.org/simple a",
        "pip install git+https://example.org/a",
        "pip install -e .",
        "pip install -r not-there.txt",
        "pip install $PACKAGE",
        "apt-get install -y git && make",
        "apt-get update && apt-get upgrade -y",
        "apt-get remove -y git",
        "pip install a > log",
        "pip install a || true",
        "(pip install a)",
        "pip install 'a b'",
    ],
)
def test_what_does_more_stays_a_step(tmp_path: Path, step: str) -> None:
    found = draft(tmp_path, f"{BASE}RUN {step}\n")
    assert (found.apt, found.pip, len(found.run)) == ([], [], 1)


def test_packages_behind_a_step_stay_behind_it(tmp_path: Path) -> None:
    found = draft(tmp_path, f"{BASE}RUN ./add-an-archive\nRUN apt-get install -y of-it\n")
    assert found.apt == []
    assert [one["name"] for one in found.run] == [
        "./add-an-archive (Dockerfile:2)",
        "apt-get install -y of-it (Dockerfile:3)",
    ]


def test_a_step_sees_the_variables_and_the_folder_that_it_has_there(tmp_path: Path) -> None:
    found = draft(
        tmp_path,
        BASE
        + "ARG WHO=me\nARG NOBODY\nENV GREETING='a b' PATH=/opt/x/bin:$PATH\n"
        + f"WORKDIR {tmp_path}\nWORKDIR sub\n"
        + 'RUN echo "$GREETING $WHO ${NOBODY}$NOT_SET $PWD $PATH" | cat\n'
        + 'ENV GREETING=later\nRUN echo \'a\\tb\' | grep x | cat\nRUN ["echo", "$GREETING"]\n',
    )
    assert run_step(found) == f"a b me  {tmp_path}/sub /opt/x/bin:/usr/bin:/bin\n"
    assert run_step(found, 1) == ""  # as sh: neither the pipe nor echo's tab ends it
    assert run_step(found, 2) == "$GREETING\n"
    assert found.environment == {"GREETING": "later", "PATH": {"prepend": ["/opt/x/bin"]}}
    assert found.left_out == []


def test_scripts_below_a_step(tmp_path: Path) -> None:
    found = draft(
        tmp_path,
        BASE
        + "RUN <<EOF\necho $((1 + 1))\nEOF\n"
        + "RUN <<EOF\n#!/usr/bin/env python3\nprint(3)\nEOF\n"
        + "RUN cat <<A - && cat <<'B'\none $((1 + 1))\nA\ntwo $X\nB\n",
    )
    assert [run_step(found, number) for number in range(3)] == ["2\n", "3\n", "one 2\ntwo $X\n"]


def test_a_shell_with_options(tmp_path: Path) -> None:
    shell = 'SHELL ["/bin/bash", "-o", "pipefail", "-c"]\n'
    found = draft(tmp_path, f"{BASE}{shell}RUN false | cat\n")
    with pytest.raises(subprocess.CalledProcessError):
        run_step(found)
    powershell = draft(tmp_path, f'{BASE}SHELL ["powershell", "-command"]\n')
    assert left_out(powershell) == [
        (2, "steps of a recipe are lines of bash without further options")
    ]


def test_files_are_copied_with_their_modes(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/a.sh").write_text("#!/bin/sh\n")
    (tmp_path / "bin/a.sh").chmod(0o755)
    (tmp_path / "b.conf").write_text("b\n")
    (tmp_path / ".dockerignore").write_text("# no notes\n**/*.md\n")
    (tmp_path / "bin/notes.md").write_text("x\n")
    found = draft(
        tmp_path,
        BASE
        + "WORKDIR /w\nCOPY bin /opt/bin\nCOPY b.conf bin/a.sh ./\nCOPY --chmod=600 *.conf /etc/c\n"
        + "COPY b.conf /tmp\nCOPY b.conf /w\n"
        + "ARG X=1\nCOPY <<A <<'B' /h/\na $X\nA\nb $X\nB\n",
    )
    assert {path: (one["content"], one["mode"]) for path, one in found.files.items()} == {
        "/opt/bin/a.sh": ("#!/bin/sh\n", "0755"),
        "/w/b.conf": ("b\n", "0644"),
        "/w/a.sh": ("#!/bin/sh\n", "0755"),
        "/etc/c": ("b\n", "0600"),
        "/tmp/b.conf": ("b\n", "0644"),
        "/h/A": ("a 1\n", "0644"),
        "/h/B": ("b $X\n", "0644"),
    }
    assert found.left_out == []


def test_what_cannot_be_copied_says_why(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"\0\1")
    (tmp_path / "large").write_text("x" * (1 << 18) + "x")
    (tmp_path / "out").symlink_to("/etc/hostname")
    (tmp_path / "many").mkdir()
    for number in range(201):
        (tmp_path / f"many/{number}").write_text("")
    found = draft(
        tmp_path,
        BASE
        + "COPY model.bin /a\nCOPY large /a\nCOPY out /a\nCOPY many /a\nCOPY ../x /a\n"
        + "COPY nothing /a\nCOPY a b\nADD https://example.org/x /a\nADD x.tar.gz /a\n"
        + "COPY --from=ghcr.io/astral-sh/uv:latest /uv /bin/\nRUN rm -f /etc/d\n",
    )
    whys = dict(left_out(found))
    assert "no text of a recipe (control characters" in whys[2]
    assert "larger than" in whys[3]
    assert "out is a link" in whys[4]
    assert "more than 200" in whys[5]
    assert "lies outside" in whys[6]
    assert "has no nothing" in whys[7]
    assert "base's own folder" in whys[8]
    assert "fetches nothing" in whys[9]
    assert "unpacks an archive" in whys[10]
    assert "one stage: /uv would come from ghcr.io" in whys[11]
    assert found.files == {}
    assert [one["name"] for one in found.run] == ["rm -f /etc/d (Dockerfile:12)"]


def test_a_folder_that_is_too_large_still_has_its_requirements(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(b"\0")
    (tmp_path / "requirements.txt").write_text("einops\n")
    found = draft(
        tmp_path, f"{BASE}COPY . /app\nWORKDIR /app\nRUN pip install -r requirements.txt\n"
    )
    assert found.pip == ["einops"]
    assert len(found.left_out) == 1


def test_the_last_stage_counts_and_what_it_goes_on_from(tmp_path: Path) -> None:
    text = (
        "FROM a/tools AS tools\nRUN make\n"
        "FROM nvcr.io/nvidia/pytorch:24.11-py3 AS base\nARG A=1\nENV B=$A\nWORKDIR /w\n"
        "FROM base as last\nENV C=$A\nCOPY --from=tools /x /y\nRUN go on\n"
        "FROM base AS other\nENV D=1\n"
    )
    found = draft(tmp_path, text, target="last")
    assert found.image == "nvcr.io/nvidia/pytorch:24.11-py3"
    assert found.environment == {"B": "1", "C": "1"}
    assert [one["name"] for one in found.run] == ["go on (Dockerfile:10)"]
    assert [(one.place.line, one.why) for one in found.notes] == [
        (1, "its 2 instructions make another image"),
        (11, "its 2 instructions make another image"),
        (7, "containers start in the folder that they are started from"),
    ]
    assert draft(tmp_path, text).environment == {"B": "1", "D": "1"}
    with pytest.raises(InputError, match="has no stage lost .did you mean 'last'"):
        draft(tmp_path, text, target="lost")


def test_every_instruction_is_said_noted_or_left_out(tmp_path: Path) -> None:
    found = draft(
        tmp_path,
        BASE
        + "MAINTAINER me\nEXPOSE 80\nVOLUME /x\nSTOPSIGNAL 9\nHEALTHCHECK NONE\nCMD x\n"
        + "ONBUILD RUN x\nUSER me\nUSER root\nLABEL a=b org.hpcstack.x=1 c=\nENV APPTAINER_X=1 Y=a\\\\b\n"
        + "ENV Z=$UNKNOWN\nWHATEVER x\nRUN --mount=type=secret,id=x a\n"
        + 'RUN --mount=type=cache,target=/x --network=none a\nENTRYPOINT ["/a", "b"]\n',
    )
    assert [one.place.line for one in found.notes] == [2, 3, 4, 5, 6, 7, 8, 11]
    assert [number for number, _ in left_out(found)] == [9, 11, 12, 12, 13, 14, 15]
    assert found.labels == {"a": "b"}
    assert found.entrypoint == ["/a", "b"]
    [step] = found.run
    assert step["network"] is False


def test_a_hostile_file_ends_in_words(tmp_path: Path) -> None:
    text = f"{BASE}ENV A={'x' * 1000}\n" + "ENV A=$A$A\n" * 30
    found = draft(tmp_path, text)
    assert any("longer than" in why for _, why in left_out(found))
    nested = draft(tmp_path, f"{BASE}ARG X\nENV A={'${X:-' * 5000}\n")
    assert len(nested.left_out) == 1
    assert split_words("\0" * 3, "\\") == ["\0\0\0"]


def test_no_value_of_a_files_author_is_taken_for_the_bases(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no text"):
        draft(tmp_path, f"{BASE}ENV A=\0PATH\0\0\0:x\n")
    found = draft(tmp_path, f"{BASE}ENV A=${{X:+`id`:$X}}\nRUN printenv A\n")
    assert run_step(found, X="x") == "`id`:x\n"


# -- what somebody with fresh eyes found


def test_a_line_that_is_joined_inside_a_word_stays_one(tmp_path: Path) -> None:
    found = draft(
        tmp_path,
        BASE
        + "RUN printf '%s ' abc\\\ndef\nRUN printf '%s ' \"a\\\nb\" 'c\\\nd'\n"
        + "RUN echo a # x \\\n && echo b\nRUN printf '%s ' a \\\n  b\n",
    )
    assert [run_step(found, number) for number in range(4)] == ["abcdef ", "ab cd ", "a\n", "a b "]


def test_a_name_that_bash_keeps_is_left_out_with_what_takes_it(tmp_path: Path) -> None:
    found = draft(
        tmp_path,
        BASE
        + "ARG UID=1000\nENV my.var=1\nRUN echo ok\nRUN chown $UID /x\nARG my-arg=1\nRUN echo b\n",
    )
    assert [number for number, _ in left_out(found)] == [2, 3, 5, 6]
    assert [run_step(found, number) for number in range(2)] == ["ok\n", "b\n"]


@pytest.mark.parametrize(
    "before",
    [
        "ENV PIP_INDEX_URL=https://example.org/simple\n",
        "COPY my.list /etc/apt/sources.list.d/\n",
        "ARG https_proxy=http://proxy:1\n",
    ],
)
def test_what_decides_about_packages_keeps_them_in_a_step(tmp_path: Path, before: str) -> None:
    (tmp_path / "my.list").write_text("deb http://example.org/ x y\n")
    found = draft(tmp_path, f"{BASE}{before}RUN pip install einops\n")
    assert (found.pip, len(found.run)) == ([], 1)


@pytest.mark.parametrize(
    ("step", "pip"),
    [
        ("pip install --root-user-action ignore numpy", ["numpy"]),
        ("pip install --progress-bar off --timeout=9 six", ["six"]),
        ("PIP_NO_CACHE_DIR=1 pip install six", ["six"]),
        ("pip install foo-1.0-py3-none-any.whl", []),
        ("pip install pkg.tar.gz", []),
        ("PIP_TARGET=/x pip install numpy", []),
        ("pip install -U -r r.txt", []),
        ("pip install -r remote.txt", []),
        ("pip install -r link.txt", []),
    ],
)
def test_only_names_of_packages_become_packages(tmp_path: Path, step: str, pip: list[str]) -> None:
    context = tmp_path / "context"
    context.mkdir()
    (context / "r.txt").write_text("six\n")
    (context / "remote.txt").write_text("-r https://example.org/r.txt\n")
    (tmp_path / "elsewhere.txt").write_text("six\n")
    (context / "link.txt").symlink_to(tmp_path / "elsewhere.txt")
    found = draft(
        context, f"{BASE}COPY r.txt remote.txt /tmp/\nCOPY . /tmp/\nWORKDIR /tmp\nRUN {step}\n"
    )
    assert found.pip == pip
    assert len(found.run) == (0 if pip else 1)


def test_recommended_packages_are_told(tmp_path: Path) -> None:
    found = draft(tmp_path, f"{BASE}RUN apt-get install -y git\n")
    assert "recommend" in found.notes[0].why


def test_packages_are_named_once(tmp_path: Path) -> None:
    found = draft(
        tmp_path,
        f"{BASE}RUN apt-get install -y git git\nRUN pip install a==1\nRUN pip install A==2\n",
    )
    assert (found.apt, found.pip) == (["git"], ["a==1"])
    assert left_out(found) == [(4, "a recipe names a package once, and has a==1")]


def test_a_file_between_two_steps_is_written_between_them(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("END_OF_FILE\n'$x'\n")
    (tmp_path / "b").write_text("no end")
    place = tmp_path / "made"
    found = draft(
        tmp_path,
        f"{BASE}WORKDIR {place}\nRUN rm -rf *\nCOPY a a\nCOPY --chmod=755 b {place}/bin/b\nRUN cat a bin/b\n",
    )
    assert found.files == {}
    outputs = [run_step(found, number) for number in range(4)]
    assert outputs[-1] == "END_OF_FILE\n'$x'\nno end"
    assert (place / "bin/b").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize(
    "line",
    [
        "COPY --parents a /x",
        "COPY --exclude=*.md a /x",
        "RUN --mount=source=.,target=/src a",
        "RUN --mount=from=b,target=/src a",
        "RUN",
        "COPY a** /x",
        "COPY $1 /x",
        'SHELL ["/bin/bash", "--login", "-c"]',
        'SHELL ["/bin/bash", "/x/c"]',
        "ENTRYPOINT []",
        "ENV A=${B%x}",
        "WORKDIR $HOME",
        "LABEL a=${stack.name}",
        "COPY " + "a" * 5000 + " /x",
    ],
)
def test_what_is_not_understood_is_left_out_by_line(tmp_path: Path, line: str) -> None:
    found = draft(tmp_path, f"{BASE}{line}\n")
    assert [number for number, _ in left_out(found)] == [2]


def test_what_was_left_out_takes_what_depends_on_it_along(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    found = draft(
        tmp_path,
        BASE
        + "WORKDIR /app\nWORKDIR $HOME\nCOPY a .\nRUN ls\nWORKDIR /x\nRUN ls\n"
        + "ENV A=1\nENV A=${B%x}\nRUN echo $A\nENV C=$A\n"
        + 'SHELL ["fish", "-c"]\nRUN b\nSHELL ["/bin/sh", "-c"]\nRUN c\n',
    )
    assert [number for number, _ in left_out(found)] == [3, 4, 5, 9, 10, 11, 12, 13]
    assert found.environment == {}
    assert [one["name"] for one in found.run] == ["ls (Dockerfile:7)", "c (Dockerfile:15)"]


def test_where_a_file_goes_without_a_slash(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/b.txt").write_text("")
    (tmp_path / "r.sh").write_text("")
    (tmp_path / "r.sh").chmod(0o600)
    found = draft(
        tmp_path,
        BASE
        + "COPY a /app/\nCOPY r.sh /app\nWORKDIR /w/src\nCOPY r.sh /w\nCOPY r.sh /etc/profile.d\n"
        + "COPY r.sh /run/.\nCOPY r.sh /entrypoint\n",
    )
    assert sorted(found.files) == [
        "/app/b.txt",
        "/app/r.sh",
        "/entrypoint",
        "/etc/profile.d/r.sh",
        "/run/r.sh",
        "/w/r.sh",
    ]
    assert found.files["/entrypoint"]["mode"] == "0600"


def test_env_counts_more_than_an_argument(tmp_path: Path) -> None:
    found = draft(tmp_path, f"{BASE}ENV A=1\nARG A=2\nRUN echo $A\n")
    assert run_step(found) == "1\n"


def test_a_last_folder_is_made(tmp_path: Path) -> None:
    place = tmp_path / "results"
    found = draft(tmp_path, f"{BASE}WORKDIR {place}\n")
    run_step(found)
    assert place.is_dir()


def test_an_entrypoint_of_the_shell_that_holds(tmp_path: Path) -> None:
    found = draft(tmp_path, f'{BASE}SHELL ["/bin/bash", "-c"]\nENTRYPOINT run me\n')
    assert found.entrypoint == ["/bin/bash", "-c", "run me"]


def test_sh_of_rocky_is_bash(tmp_path: Path) -> None:
    found = draft(tmp_path, "FROM rockylinux:9\nRUN echo 'a\\tb' {1,2}\n")
    assert run_step(found) == "a\\tb 1 2\n"
    of_debian = draft(tmp_path, "FROM ubuntu\nRUN echo 'a\\tb' {1,2}\n")
    assert run_step(of_debian) == "a\tb {1,2}\n"


def test_another_base_needs_none_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "Dockerfile"
    path.write_text("ARG BASE\nFROM $BASE\nRUN a\n")
    found = draft_dockerfile(path, tmp_path, {}, "", AMD64, needs_base=False)
    assert (found.image, len(found.run)) == ("", 1)
    assert draft(tmp_path, "FROM --platform=linux/arm64/v8 a\n").platform == "linux/arm64"


def test_links_and_lists_of_what_to_ignore(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/a").write_text("")
    (tmp_path / "d/loop").symlink_to("..")
    found = draft(tmp_path, f"{BASE}COPY d /x\nCOPY */*/*/*/*/*/*/*/*/*/*/*/*/* /x\n")
    assert "is a link" in left_out(found)[0][1]
    (tmp_path / "Dockerfile.dockerignore").write_text("d/loop\n")
    assert list(draft(tmp_path, f"{BASE}COPY d /x\n").files) == ["/x/a"]
    (tmp_path / "Dockerfile.dockerignore").write_text("[z-a]\n")
    with pytest.raises(InputError, match="cannot be used"):
        draft(tmp_path, f"{BASE}COPY d /x\n")


@pytest.mark.parametrize(
    "text",
    [
        "ENV A=" + "x" * 60_000 + "\n" + "".join(f"ENV B{n}=$A\n" for n in range(1500)),
        "ENV A=" + "x" * 50_000 + "\n" + "RUN a\n" * 3000,
        "ENV A=" + "x" * 50_000 + "\nCOPY <<E /x\n" + "$A\n" * 30_000 + "E\n",
        "RUN a\nCOPY x y\n" * 8000,
        'RUN ["\\ud800"]\nENTRYPOINT ["\\ud800"]\n',
    ],
    ids=["variables", "steps", "heredoc", "many", "half a character"],
)
def test_a_costly_file_is_read_in_seconds(tmp_path: Path, text: str) -> None:
    began = time.process_time()
    found = draft(tmp_path, BASE + text)
    assert found.understood
    assert time.process_time() - began < 10


# -- and what was seen when it was read once more


def test_packages_of_rpm_become_packages(tmp_path: Path) -> None:
    found = draft(
        tmp_path,
        "FROM nvcr.io/nvidia/cuda:12.6.3-devel-rockylinux9\n"
        "RUN dnf -y install git gcc-c++ && dnf clean all && rm -rf /var/cache/dnf/*\n"
        "RUN dnf install -y --setopt=install_weak_deps=False vim\n"
        "RUN dnf install -y '@Development Tools'\nRUN dnf install -y --allowerasing curl\n",
    )
    assert found.dnf == ["git", "gcc-c++", "vim"]
    assert [one.place.line for one in found.notes] == [2]
    assert len(found.run) == 2


def test_what_comes_behind_a_step_that_was_left_out_stays_behind_it(tmp_path: Path) -> None:
    found = draft(tmp_path, f"{BASE}RUN --mount=type=ssh add-an-archive\nRUN pip install of-it\n")
    assert [number for number, _ in left_out(found)] == [2]
    assert (found.pip, len(found.run)) == ([], 1)


def test_a_setting_that_was_left_out_still_decides(tmp_path: Path) -> None:
    found = draft(tmp_path, f"{BASE}ENV PIP_INDEX_URL=${{HOST%x}}/simple\nRUN pip install a\n")
    assert (found.pip, len(found.run)) == ([], 1)


def test_a_program_without_a_shell_needs_its_folder_too(tmp_path: Path) -> None:
    found = draft(
        tmp_path, f'{BASE}WORKDIR $HOME\nRUN ["make"]\nENV A=${{B%x}}\nWORKDIR /x\nRUN ["b"]\n'
    )
    assert [number for number, _ in left_out(found)] == [2, 3, 4]
    assert [one["name"] for one in found.run] == ['["b"] (Dockerfile:6)']


def test_very_many_lines_that_are_left_out_leave_a_recipe(tmp_path: Path) -> None:
    found = draft(tmp_path, BASE + "USER me\n" * 20_000)
    text = render_draft(found, "Dockerfile", "a", "1")
    assert "LEFT OUT, too: 19800 more lines" in text
    assert len(text) < 1 << 20
