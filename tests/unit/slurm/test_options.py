"""Slurm's options: the one table, and what somebody gave."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcstack.core.errors import InputError
from hpcstack.slurm.options import (
    OPTIONS,
    SHORT,
    Scope,
    SlurmOptions,
    Value,
    find_scope,
    name_variable,
)
from hpcstack.slurm.query import parse_long_options

# A line of `srun --help` that describes an option: `  -J, --job-name=jobname   name of job`.
WORD = re.compile(r"^ {1,6}(?:-(\w), +)?(--[a-z-]+)(\[?=\S+)?", re.MULTILINE)


def test_an_option_that_is_given_is_found_by_its_name() -> None:
    found = SlurmOptions.parse(["--mem=4G", "--pty", "--gres=gpu:2,nvme:1", "--mem=8G", "--x="])
    assert found.has("--pty")
    assert found.has("--pity", "--gres")
    assert not found.has("--p", "--me")
    assert found.value("--mem") == "8G", "the last one counts"
    assert found.value("--gres") == "gpu:2,nvme:1"
    assert found.value("--pty") == ""
    assert found.value("--time") == ""


def test_a_short_form_is_refused() -> None:
    with pytest.raises(InputError, match="-n8: write the long form"):
        SlurmOptions.parse(["-n8"])


@given(st.lists(st.from_regex(r"--[a-z]+(-[a-z]+)?(=[^\n]*)?", fullmatch=True)))
def test_words_are_given_on_as_they_came(words: list[str]) -> None:
    assert [one.word for one in SlurmOptions.parse(words).given] == words


def test_scopes() -> None:
    assert find_scope("--nodes") is Scope.JOB_AND_STEP
    assert find_scope("--partition") is Scope.JOB
    assert find_scope("--container-image") is Scope.STEP, "what is not in the table is srun's"
    assert not OPTIONS["--array"].salloc, "an array is a script's"


def read_help(tool: str, folder: Path) -> str:
    """What a program of Slurm's says of its options; no Slurm needs to run for it."""
    config = folder / "slurm.conf"
    config.write_text("ClusterName=none\nSlurmctldHost=localhost\n")
    env = {**os.environ, "SLURM_CONF": str(config)}
    argv = [tool, "--help"]
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout


@pytest.mark.srun
def test_the_table_is_as_slurms_own_help(tmp_path: Path) -> None:
    """Of each program that knows an option: whether a value follows, and the short form."""
    wrong, seen = [], set()
    for tool in ("srun", "sbatch", "salloc"):
        help_text = read_help(tool, tmp_path)
        for short, name, value in WORD.findall(help_text):
            row = OPTIONS.get(name)
            if row is None:
                continue
            seen.add(name)
            if short and row.short and row.short != f"-{short}":
                wrong.append(f"{tool}: {name} is -{short}, not {row.short}")
            if value.startswith("=") and row.value is Value.NONE:
                wrong.append(f"{tool}: a value follows {name}")
            if not value and row.value is Value.NEEDED:
                wrong.append(f"{tool}: no value follows {name}")
    assert len(seen) > 40, "the help was not read"
    assert not wrong


@pytest.mark.srun
def test_what_salloc_does_not_know_is_marked(tmp_path: Path) -> None:
    known = parse_long_options(read_help("salloc", tmp_path))
    assert "--nodes" in known
    of_jobs = [row for row in OPTIONS.values() if row.scope is not Scope.STEP]
    in_help = [row.name for row in of_jobs if row.salloc and row.in_help]
    assert set(in_help) <= set(known)


def test_short_forms_stand_for_one_option_each() -> None:
    shorts = [row.short for row in OPTIONS.values() if row.short]
    assert len(shorts) == len(set(shorts))
    assert SHORT["-J"] == "--job-name"
    assert "-H" not in SHORT, "no value follows it"


def test_a_variable_is_named_as_the_programs_of_slurm_name_it() -> None:
    assert name_variable("--gpus-per-node", "SALLOC") == "SALLOC_GPUS_PER_NODE"
    assert name_variable("--time", "SLURM") == "SLURM_TIMELIMIT"
    assert name_variable("--mem", "SBATCH") == "SBATCH_MEM_PER_NODE"
    assert name_variable("--switches", "SLURM") == "SLURM_REQ_SWITCH"
    assert name_variable("--array", "SBATCH") == "SBATCH_ARRAY_INX"
