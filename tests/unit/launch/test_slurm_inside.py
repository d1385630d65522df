"""Slurm's commands in a container: what is typed, and what the node runs for it."""

from __future__ import annotations

import getopt
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import make_site
from hpcstack.core.errors import StoreError
from hpcstack.core.process import Runner
from hpcstack.launch.reach_slurm import add_slurm_commands, wants_slurm
from hpcstack.launch.surroundings import look_around
from hpcstack.runtimes import RUNTIMES, Step, slurm_inside
from hpcstack.store.artifact import Artifact
from support.slurm_helper import CLIENT, HELPER, STEP, Served, load_helper, serve

helper = load_helper()
lines = helper.sys.modules["slurm_lines"]


def spell(program: str, said: str = "") -> Any:
    options = STEP["options"][program]
    return lines.Spelling(options["valued"], options["others"], said)


def split(program: str, *words: str) -> tuple[list[str], list[str]]:
    options, rest = lines.read_options(list(words), spell(program))
    return lines.join_options(options), rest


@pytest.mark.parametrize(
    ("program", "typed"),
    [
        ("srun", "-N2 -n 4 | hostname"),
        ("srun", "-lN 2 | hostname -N"),
        ("srun", "--nodes 2 --label --mem=4G | sh -c x"),
        ("srun", "--partit debug | hostname"),
        ("srun", "--pty | bash"),
        ("srun", "-W 5 -K0 -u | true"),
        ("srun", "--exclusive --kill-on-bad-exit | true"),
        ("srun", "--exclusive=user | true"),
        ("srun", "--cons | gpu x"),
        ("srun", "--clust a | x"),
        ("srun", "| - x"),
        ("sbatch", "-W -N1 | job.sh -N2"),
        ("sbatch", "--wrap sleep --parsable |"),
        ("sbatch", "-a 1-4 --requeue | job.sh"),
    ],
)
def test_options_end_where_the_command_begins(program: str, typed: str) -> None:
    options, _, command = typed.partition("|")
    assert split(program, *options.split(), *command.split()) == (options.split(), command.split())


LETTERS = "".join(
    name[1] + ":" * (name in STEP["options"]["sbatch"]["valued"])
    for key in ("valued", "others")
    for name in STEP["options"]["sbatch"][key]
    if re.fullmatch("-[a-zA-Z]", name) and name not in ("-I", "-K", "-k", "-Z", "-b")
)


@given(
    st.lists(st.sampled_from(["-N2", "-N", "2", "-HW", "-Hn", "-J", "x", "-o", "-", "--", "-Wq"]))
)
def test_short_options_are_split_as_getopt_splits_them(words: list[str]) -> None:
    try:
        _, rest = getopt.getopt(words, LETTERS)
    except getopt.GetoptError:
        return  # sbatch refuses it
    assert split("sbatch", *words)[1] == rest


def insert(*typed: str, environ: dict[str, str] | None = None, **step: Any) -> list[str]:
    insertion = lines.ImageInserter({**STEP, **step}, spell("srun"), environ or {})
    return ["srun", *insertion.insert_words(list(typed))]


def test_a_step_runs_in_the_same_image() -> None:
    words = STEP["words"]
    assert insert("-N2", "hostname") == ["srun", "-N2", *words, "hostname"]
    assert insert("-N2", "--", "-x") == ["srun", "-N2", *words, "-x"]
    both = insert("-N1", "a", "b", ":", "-N2", "c")
    assert both == ["srun", "-N1", *words, "a", "b", ":", "-N2", *words, "c"]


@pytest.mark.parametrize(
    "typed", ["--help", "--version", "--container-image=x true", "--container x true"]
)
def test_another_image_or_none_is_left_alone(typed: str) -> None:
    assert insert(*typed.split()) == ["srun", *typed.split()]


def test_a_mount_of_the_users_goes_with_those_of_the_image() -> None:
    """The last option counts for Pyxis."""
    words = ["--container-image=x", "--container-mounts=/a:/a", "/inside"]
    typed = ("-N2", "--container-mounts", "/b:/b", "true")
    said = "      --container-mounts=SRC:DST  [pyxis] bind mount\n"
    step = {**STEP, "words": words, "by_srun": True}
    made = lines.ImageInserter(step, spell("srun", said), {}).insert_words(list(typed))
    assert made == [
        "-N2",
        "--container-image=x",
        "--container-mounts=/a:/a,/b:/b",
        "/inside",
        "true",
    ]


def test_a_step_in_a_step_does_not_wait_for_it() -> None:
    assert insert("-n1", "true", is_in_step=True)[:3] == ["srun", "-n1", "--overlap"]
    assert insert("-n1", "--overlap", "true", is_in_step=True).count("--overlap") == 1


@pytest.mark.parametrize("by_srun", [False, True])
@pytest.mark.parametrize("option", ["--multi-prog", "--multi", "--bcast=/tmp/x"])
def test_what_is_no_command_but_a_file_is_refused(option: str, by_srun: bool) -> None:
    with pytest.raises(lines.RefusedError, match="HPCSTACK_ON_HOST"):
        insert(option, "conf", by_srun=by_srun)


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ("NONE", "PATH,HOME,HPCSTACK_SLURM_PWD,HPCSTACK_SLURM_STEP,ENROOT_CONFIG_PATH"),
        (
            "A=1,PYTHONPATH",
            "A=1,PYTHONPATH,HPCSTACK_INSIDE_PYTHONPATH,PATH,HOME,HPCSTACK_SLURM_PWD,HPCSTACK_SLURM_STEP,ENROOT_CONFIG_PATH",
        ),
        ("ALL,A=1", "ALL,A=1"),
    ],
)
def test_what_the_container_needs_is_exported_besides(asked: str, given: str) -> None:
    step = {"environment": {"ENROOT_CONFIG_PATH": "/x"}}
    assert f"--export={given}" in insert(f"--export={asked}", "true", **step)
    by_variable = insert("true", environ={"SLURM_EXPORT_ENV": asked}, **step)
    assert (f"--export={given}" in by_variable) == (asked != "ALL,A=1")


# -- the environment


def test_the_hosts_programs_get_nothing_of_the_image_that_would_break_them() -> None:
    own = {
        "PATH": "/usr/bin", "SLURM_JOB_ID": "7", "SLURM_CONF": "/etc/slurm.conf", "HOME": "/home/me",
        "CUDA_HOME": "/of/the/node", "UNSET_INSIDE": "1", "HPCSTACK_SLURM": "kept",
        "HPCSTACK_INSIDE_OLD": "x", "HPCSTACK_SLURM_BATCH": "yes",
    }  # fmt: skip
    theirs = {
        "PATH": "/opt/image", "LD_LIBRARY_PATH": "/opt/lib", "PYTHONPATH": "/opt/py", "HOME": "/root",
        "CUDA_HOME": "/mine", "CUDA_VISIBLE_DEVICES": "3", "SAID": "a\nb", "SLURM_NTASKS": "2",
        "SLURM_CONF": "/evil", "SLURM_EXIT_ERROR": "125", "ENROOT_ROOTFS": "/x", "TMPDIR": "/scratch",
    }  # fmt: skip
    made, carried = lines.make_environment(own, theirs, STEP["image"])
    assert made == {
        "PATH": "/usr/bin",
        "SLURM_CONF": "/etc/slurm.conf",
        "HOME": "/home/me",
        "CUDA_HOME": "/of/the/node",
        "HPCSTACK_SLURM": "kept",
        "CUDA_VISIBLE_DEVICES": "3",
        "SAID": "a\nb",
        "SLURM_NTASKS": "2",
    }
    assert carried == {
        "HPCSTACK_INSIDE_PATH": "/opt/image",
        "HPCSTACK_INSIDE_LD_LIBRARY_PATH": "/opt/lib",
        "HPCSTACK_INSIDE_PYTHONPATH": "/opt/py",
        "HPCSTACK_INSIDE_CUDA_HOME": "/mine",
        "HPCSTACK_INSIDE_TMPDIR": "/scratch",
    }


def test_a_job_begins_without_the_variables_of_the_one_it_is_submitted_from() -> None:
    environ = {
        "SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "SLURM_CONF": "c", "SBATCH_PARTITION": "p", "RANK": "3",
        "PMIX_RANK": "3", "CUDA_VISIBLE_DEVICES": "1", "HPCSTACK_SLURM_STEP": "yes", "MINE": "1",
    }  # fmt: skip
    assert lines.leave_job(environ) == {"SLURM_CONF": "c", "SBATCH_PARTITION": "p", "MINE": "1"}


def enter(*command: str, **variables: str) -> str:
    script = CLIENT.with_name("slurm.sh")
    env = {"PATH": "/usr/bin:/bin", **variables}
    done = subprocess.run(
        ["sh", str(script), *command], capture_output=True, text=True, env=env, check=True
    )
    return done.stdout


def test_the_callers_variables_are_there_again_in_the_image() -> None:
    value = 'it\'s $HOME `id`\nHPCSTACK_INSIDE_FAKE=1 \\ "two"'
    said = enter("printenv", "PYTHONPATH", HPCSTACK_INSIDE_PYTHONPATH=value)
    assert said == value + "\n"
    assert (
        enter("printenv", "PATH", HPCSTACK_INSIDE_PATH="/bin:/x")
        == "/opt/hpcstack/slurm/bin:/bin:/x\n"
    )
    names = [line.partition("=")[0] for line in enter("env", HPCSTACK_INSIDE_A="1").splitlines()]
    assert "HPCSTACK_INSIDE_A" not in names
    assert "A" in names


def test_the_callers_folder_is_gone_to(tmp_path: Path) -> None:
    assert enter("pwd", HPCSTACK_SLURM_PWD=str(tmp_path)) == f"{tmp_path}\n"
    assert enter("pwd", HPCSTACK_SLURM_PWD=str(tmp_path / "none")) == f"{Path.cwd()}\n"


# -- batch scripts

LINES = st.text(
    st.characters(exclude_characters="\0\r", exclude_categories=["Cs"]), max_size=200
).map(lambda text: "#!/bin/sh\n" + text)


@given(LINES)
def test_a_batch_script_arrives_as_it_was_written(text: str) -> None:
    step = {**STEP, "words": ["cat", "-"], "script": "/dev/null"}
    script = lines.write_batch_script(text, step, "/")
    done = subprocess.run(["sh", "-c", script, "job"], capture_output=True, check=True)
    assert done.stdout == text.rstrip("\n").encode() + b"\n" * max(
        1, len(text) - len(text.rstrip("\n"))
    )


def test_directives_stay_at_the_head() -> None:
    text = "#!/bin/bash\n#SBATCH -N2\n\n# why\n#SBATCH --time=5\necho\n#SBATCH --late\n"
    script = lines.write_batch_script(text, STEP, "/some where")
    head = script.partition("# This was submitted")[0]
    assert head == "#!/bin/sh\n#SBATCH -N2\n\n# why\n#SBATCH --time=5\n"
    assert "HPCSTACK_SLURM_PWD='/some where'" in script
    assert lines.list_directives(text) == ["-N2", "--time=5"]
    quoted = '#!/bin/sh\n#SBATCH --chdir="/my data" # there\n#SBATCH -J "odd\n'
    assert lines.list_directives(quoted) == ["--chdir=/my data", "-J", '"odd']


def test_a_value_for_the_runtime_is_quoted_and_gives_way(tmp_path: Path) -> None:
    value = 'it\'s }$(touch x)\n"two"'
    step = {**STEP, "words": ["printenv"], "script": "SAID", "environment": {"SAID": value}}
    script = lines.write_batch_script("#!/bin/sh\n", step, "/")
    done = subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert done.stdout == value + "\n"
    assert not (tmp_path / "x").exists()
    done = subprocess.run(
        ["sh", "-c", script],
        capture_output=True,
        text=True,
        env={"SAID": "mine", "PATH": os.environ["PATH"]},
        check=True,
    )
    assert done.stdout == "mine\n"


@pytest.mark.parametrize("interpreter", ["/bin/sh", "/usr/bin/env -S sh -e", "/bin/sh -u"])
def test_a_script_is_run_from_standard_input(tmp_path: Path, interpreter: str) -> None:
    link = tmp_path / "script"
    link.symlink_to(CLIENT)
    text = f'#!{interpreter}\necho "$#: $2"; cat; exit 5\n'
    argv = [sys.executable, "-I", "-S", str(link), "a", "b c"]
    done = subprocess.run(argv, input=text, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("2: b c\n", 5), done.stderr


# -- the helper and the client together


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serve(tmp_path) as one:
        yield one


def test_the_program_gets_the_words_the_streams_and_the_folder(served: Served) -> None:
    served.put("squeue", 'printf "%s\\n" "$PWD" "$@"; cat; echo complaint >&2; exit 7')
    done = served.type("squeue", "-o", "%i %t", "", "ü\n", input="through")
    assert done.stdout == f"{served.folder}\n-o\n%i %t\n\nü\n\nthrough"
    assert done.stderr == "complaint\n"
    assert done.returncode == 7


def test_a_program_that_a_signal_ends_ends_the_client_so(served: Served) -> None:
    served.put("sinfo", "kill -USR1 $$")
    assert served.type("sinfo").returncode == -signal.SIGUSR1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR2, signal.SIGHUP])
def test_a_signal_is_handed_on(served: Served, number: signal.Signals) -> None:
    name = number.name.removeprefix("SIG")
    served.put("srun", f"trap 'exit 9' {name}; echo begun; while :; do sleep 0.05; done")
    env = {**os.environ, "HPCSTACK_SLURM_SOCKET": served.socket}
    argv = served.command("srun", "true")
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=env, text=True) as client:
        assert client.stdout
        assert client.stdout.readline() == "begun\n"
        client.send_signal(number)
        assert client.wait(timeout=20) == 9


def test_a_client_that_is_killed_takes_its_program_along(served: Served) -> None:
    served.put("srun", f"echo $$ >{served.folder}/pid; trap 'echo told >{served.folder}/told; exit' HUP; "
                       "echo begun; while :; do sleep 0.05; done")  # fmt: skip
    env = {**os.environ, "HPCSTACK_SLURM_SOCKET": served.socket}
    argv = served.command("srun", "true")
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=env, text=True) as client:
        assert client.stdout
        client.stdout.readline()
        client.kill()
    pid = int((served.folder / "pid").read_text())
    until = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()
    assert (served.folder / "told").exists()


def test_only_slurms_commands_are_run(served: Served) -> None:
    served.put("id", "id")
    done = served.type("id")
    assert done.returncode == 1
    assert "is not a Slurm command" in done.stderr


def test_what_the_node_lacks_is_said(tmp_path: Path) -> None:
    with serve(tmp_path, more="/nowhere") as served:
        assert "sreport is not installed on this node" in served.type("sreport").stderr


def test_a_script_of_the_image_is_submitted(served: Served) -> None:
    served.put("sbatch", 'echo "$@"; for last; do :; done; cat "$2"')
    (served.folder / "my job.sh").write_text("#!/bin/sh\n#SBATCH -N2\necho hello\n")
    done = served.type("sbatch", "--parsable", "my job.sh", "a b")
    words, *script = done.stdout.splitlines()
    assert re.fullmatch(r"--parsable /\S*/hpcstack-sbatch-\w+/my job.sh a b", words)
    assert "#SBATCH -N2" in script
    assert script[-2:] == ["echo hello", "A_END_OF_SCRIPT"]
    left = Path(shlex.split(words)[1]).parent
    assert not left.exists()


def test_the_last_component_of_a_heterogeneous_job_has_the_script(served: Served) -> None:
    served.put("sbatch", 'echo "$@"')
    (served.folder / "job.sh").write_text("#!/bin/sh\n")
    done = served.type("sbatch", "-N1", ":", "-N2", "job.sh", "a")
    assert re.fullmatch(r"-N1 : -N2 /\S+/job.sh a\n", done.stdout), done.stderr
    done = served.type("sbatch", "job.sh", "a", ":", "b")
    assert re.fullmatch(r"/\S+/job.sh a : b\n", done.stdout), done.stderr


def test_what_goes_to_another_image_takes_nothing_of_this_one_along(served: Served) -> None:
    served.put("sbatch", "env")
    own = {"HPCSTACK_SLURM_STEP": "yes", "PYTHONPATH": "/mine", "SLURM_NTASKS": "4"}
    for words, env in (
        (["--container-image=x", "a"], own),
        (["a"], {**own, "HPCSTACK_ON_HOST": "yes"}),
    ):
        said = served.type("sbatch", *words, env=env).stdout
        assert "PATH=" in said
        for name in (
            "HPCSTACK_INSIDE",
            "HPCSTACK_SLURM_PWD",
            "HPCSTACK_SLURM_STEP",
            "SLURM_NTASKS",
        ):
            assert name not in said


def test_mask_and_limits_are_the_callers(served: Served) -> None:
    served.put("squeue", "umask; ulimit -n; ulimit -c; echo $OMP_NUM_THREADS")
    line = shlex.join(served.command("squeue"))
    env = {**os.environ, "HPCSTACK_SLURM_SOCKET": served.socket, "OMP_NUM_THREADS": "3"}
    script = f"umask 027; ulimit -S -n 200; ulimit -S -c 0; {line}; unset OMP_NUM_THREADS; {line}"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, env=env, check=True
    )
    assert done.stdout == "0027\n200\n0\n3\n0027\n200\n0\n\n"


def test_bytes_that_are_no_text_arrive_whatever_the_locale_is(served: Served) -> None:
    served.put("squeue", 'printf "%s|%s" "$1" "$NAME" | od -An -tx1')
    env = {**os.environ, "HPCSTACK_SLURM_SOCKET": served.socket, "LC_ALL": "C", "NAME": "J\u00f6rg"}
    argv: list[str | bytes] = [*served.command("squeue"), b"\xff\xc3\xa9"]
    done = subprocess.run(argv, capture_output=True, env=env, check=True, text=True)
    assert done.stdout.split() == ["ff", "c3", "a9", "7c", "4a", "c3", "b6", "72", "67"]


def test_a_program_that_cannot_be_reached_any_more_can_be_interrupted(served: Served) -> None:
    """Before the program has started, a signal ends the client."""
    served.put("sbatch", "true")
    env = {**os.environ, "HPCSTACK_SLURM_SOCKET": served.socket}
    with subprocess.Popen(served.command("sbatch"), stdin=subprocess.PIPE, env=env) as client:
        time.sleep(1)
        client.terminate()
        assert client.wait(timeout=10) == -signal.SIGTERM


def test_many_clients_are_served_and_few_descriptors_do_not_end_it(served: Served) -> None:
    served.put("squeue", "echo served")
    line = shlex.join(served.command("squeue"))
    env = {**os.environ, "HPCSTACK_SLURM_SOCKET": served.socket}
    script = f"for i in $(seq 60); do {line} & done; wait"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, env=env, check=True
    )
    assert done.stdout.split() == ["served"] * 60


def test_a_script_that_is_missing_is_named(served: Served) -> None:
    served.put("sbatch", "true")
    done = served.type("sbatch", "nowhere.sh")
    assert (done.returncode, done.stderr) == (
        1,
        "hpcstack: sbatch: nowhere.sh: No such file or directory\n",
    )


def test_where_no_helper_is_meant_it_is_said_what_to_type(tmp_path: Path) -> None:
    link = tmp_path / "squeue"
    link.symlink_to(CLIENT)
    env = {name: value for name, value in os.environ.items() if name != "HPCSTACK_SLURM_SOCKET"}
    done = subprocess.run(
        [sys.executable, str(link)], capture_output=True, text=True, env=env, check=False
    )
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "  TIP: hpcstack launch --slurm")


@pytest.mark.skipif(os.getuid() != 0, reason="needs another user")
def test_a_socket_of_another_users_is_not_trusted(tmp_path: Path) -> None:
    name = f"hpcstack-test-{os.getpid()}-other"
    program = (
        "import os, socket, time; os.setgid(65534); os.setuid(65534); s = socket.socket(socket.AF_UNIX)\n"
        f"s.bind('\\0{name}'); s.listen(); print('up', flush=True); c, _ = s.accept(); print(c.recv(99))"
    )
    link = tmp_path / "squeue"
    link.symlink_to(CLIENT)
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout
        other.stdout.readline()
        env = {**os.environ, "HPCSTACK_SLURM_SOCKET": name}
        done = subprocess.run(
            [sys.executable, str(link)], capture_output=True, text=True, env=env, check=False
        )
        assert "another user is answering" in done.stderr
        assert other.communicate()[0] == "b''\n"


def test_the_helper_ends_with_the_step(tmp_path: Path) -> None:
    (tmp_path / "step.json").write_text(json.dumps(STEP))
    parent = subprocess.Popen(["sleep", "600"])
    name = f"hpcstack-test-{os.getpid()}-end"
    argv = [sys.executable, "-I", "-S", "-B", str(HELPER), name, str(parent.pid)]
    with subprocess.Popen([*argv, str(tmp_path / "step.json")]) as one:
        while f"@{name}" not in Path("/proc/net/unix").read_text():
            time.sleep(0.02)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            one.send_signal(number)
        time.sleep(0.3)
        assert one.poll() is None, "it ended of a signal that was for the ranks"
        parent.kill()
        parent.wait()
        assert one.wait(timeout=20) == 0


# -- what is kept for nodes


def test_what_nodes_need_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    kept = slurm_inside.keep_clients(["one"])
    again = slurm_inside.keep_clients(["one"])
    other = slurm_inside.keep_clients(["two"])
    assert kept == again
    assert (kept.folder, kept.step != other.step) == (other.folder, True)
    links = kept.folder / "image" / "bin"
    assert {path.name for path in links.iterdir()} == set(slurm_inside.COMMANDS)
    assert (links / "srun").resolve() == kept.folder / "image" / "client"
    assert (kept.folder.parent / "secret").stat().st_mode & 0o777 == 0o600


def test_a_file_that_was_damaged_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    kept = slurm_inside.keep_clients([])
    entry = kept.folder / "image" / "inside"
    text = entry.read_text()
    entry.write_text("")
    slurm_inside.keep_clients([])
    assert entry.read_text() == text


def test_no_room_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hpcstack").write_text("a file")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with pytest.raises(StoreError, match="cannot be put there"):
        slurm_inside.keep_clients([])


def test_steps_that_nobody_starts_any_more_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    old, new = slurm_inside.keep_clients(["old"]), slurm_inside.keep_clients(["new"])
    slurm_inside.describe_step(old, ["a"], {}, [], by_srun=False)
    then = time.time() - 101 * slurm_inside.DAY_S
    os.utime(old.step, (then, then))
    slurm_inside.describe_step(new, ["b"], {"A": "1"}, ["C"], by_srun=True)
    assert not old.step.exists()
    assert json.loads(new.step.read_text())["words"] == ["b"]
    assert new.step.stat().st_mode & 0o777 == 0o600


# -- the step of a launch


@pytest.mark.parametrize("name", ["apptainer", "charliecloud", "enroot", "podman", "pyxis"])
def test_a_step_has_the_clients_and_says_how_it_is_started(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    runtime = RUNTIMES[name]
    step = Step(Path("/images/a.sqsh"), ("train",), environment={"A": "1", "MY_TOKEN": "s3cret"})
    step = add_slurm_commands(step, runtime, ("around",))
    assert step.slurm_inside
    assert step.command == (slurm_inside.ENTRY, "train")
    line = " ".join(word for part in runtime.parts(step) for word in part.words)
    assert step.slurm_inside.mount in line
    by_hook = "HPCSTACK_SLURM" in runtime.environment(step)
    assert by_hook == runtime.is_plugin_of_srun
    assert by_hook != (str(step.slurm_inside.step) in line)

    kept = json.loads(step.slurm_inside.step.read_text())
    assert kept["words"][0] != "srun"
    assert kept["words"][-2:] == [slurm_inside.ENTRY, "around"]
    assert "/images/a.sqsh" in " ".join(kept["words"])
    assert kept["by_srun"] == runtime.is_plugin_of_srun
    assert "s3cret" not in json.dumps(kept)


def test_a_wish_of_the_recipe_or_the_site_means_nothing_without_slurm(tmp_path: Path) -> None:
    facts: dict[str, Any] = dict.fromkeys(
        (
            "stack",
            "key",
            "sha256",
            "platform",
            "engine",
            "lock_sha256",
            "base",
            "stand_in",
            "suite",
        ),
        "x",
    )
    plain = Artifact(size=1, facts={}, apt={}, pip={}, **facts)
    asks = replace(plain, slurm=True)
    runner = Runner()
    site = make_site(tmp_path)
    wishing, here = make_site(tmp_path, slurm_inside=True), make_site(tmp_path, runtime="local")
    for artifact, at, runtime, wanted in (
        (asks, site, "apptainer", True),
        (plain, wishing, "apptainer", True),
        (plain, site, "apptainer", False),
        (asks, site, "local", False),
        (asks, here, "auto", False),
    ):
        assert wants_slurm(artifact, look_around(runtime, at, runner)) is wanted
