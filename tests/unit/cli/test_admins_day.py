"""What a site administrator types on the first day, and what comes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpcstack.cli.session import Session, choose_stacks
from hpcstack.core.errors import InputError, ProblemsError
from hpcstack.core.process import Completed, Runner
from hpcstack.diagnose.run import _check_named
from hpcstack.launch import record
from hpcstack.launch.jobs import find_job_parts
from hpcstack.launch.record import Launch, explain_made
from hpcstack.recipe.catalog import Catalog
from hpcstack.site.load import Site, load_site
from hpcstack.slurm.state import UNKNOWN


class Answering(Runner):
    """A runner whose tools answer what a test says."""

    def __init__(self, **answers: str) -> None:
        self.answers = answers

    def has(self, tool: str) -> bool:
        return tool in self.answers

    def output(self, argv: object, **_: object) -> Completed:
        tool = argv[0]  # type: ignore[index]
        said = self.answers.get(tool, "")
        return Completed((tool,), 0, tuple(said.splitlines()), said)


def test_doctor_looks_at_what_the_site_names(tmp_path: Path) -> None:
    site = Site.model_validate({
        "store": tmp_path, "lock_dir": tmp_path, "module_root": tmp_path, "recipe_dirs": [tmp_path / "none"],
        "build": {"tmpdir": "/no/such", "ca_bundle": "/no/ca.pem"}, "group": "nobodys-group", "mounts": ["/no/data:/data"],
        "modules": {"check_as": "nobodys-user"}, "node_types": {"g": {"gpus": {"model": "H100", "count": 8}}},
        "partitions": {"gpu": {"node_type": "g"}, "gone": {"node_type": "g"}},
    })  # fmt: skip
    found = list(
        _check_named(site, "login1", Answering(sinfo="gpu|up|1:00:00|2|64|gpu:h100:4|(null)\n"))
    )
    said = " ".join(one.found for one in found)
    for part in (("build.tmpdir: " "/no/such"), "recipe_dirs: ", "mounts: /no/data", "no group nobodys-group", "no user nobodys-user",
                 "8 GPUs per node, Slurm has 4 in gpu", "/no/ca.pem"):  # fmt: skip
        assert part in said, (part, said)
    assert all(one.remedy and one.status in ("WARN", "FAIL") for one in found)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "modules:\n  tier: quick\n  prove_on: [dgx]\n",
            ":3:13: modules.prove_on: there is no node type 'dgx'",
        ),
        (
            "registries:\n  nvcr.io: {mirror: 'http://h:5000'}\n",
            "without http://: h:5000; and plain_http: true",
        ),
    ],
)
def test_a_wrong_site_is_told_at_its_line(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "site.yaml").write_text(text)
    with pytest.raises(ProblemsError) as error:
        load_site(str(tmp_path / "site.yaml"), {"HOME": str(tmp_path)})
    assert says in error.value.message


def test_a_recipe_is_not_suggested_to_itself(tmp_path: Path) -> None:
    (tmp_path / "demo-1.yaml").write_text("apiVersion: hpcstack/v1\nextends: demo-2\n")
    with pytest.raises(ProblemsError) as error:
        Catalog([tmp_path]).read(tmp_path / "demo-1.yaml")
    assert "did you mean" not in error.value.message


def test_a_machine_that_does_not_know_the_sites_group_still_launches() -> None:
    """A compute node without the directory's groups, and the doctor that is to say so."""
    from hpcstack.core.sharing import find_sharing

    sharing = find_sharing("nobodys-group", ())
    assert not sharing.has_group
    assert sharing.widen_mode(0o644) == 0o644
    assert sharing.umask == 0o022


def test_patterns_of_stacks() -> None:
    session = Session("", ())
    assert {"pytorch-24.11", "pytorch-25.10"} <= set(choose_stacks(session, ("pytorch-*",)))
    assert choose_stacks(session, ("a", "b", "a")) == ["a", "b"]
    with pytest.raises(InputError, match="no stack matches"):
        choose_stacks(session, ("nothing-*",))


@pytest.mark.parametrize(
    ("sacct", "says"),
    [
        ("CANCELLED by 0|None|00:01:00|01:00:00|n1", "it was cancelled by "), ("TIMEOUT|TimeLimit|01:00:10|01:00:00|n1", "01:00:00"),
        ("NODE_FAIL|None|00:01:00|01:00:00|n[1-2]", "a node failed, of n[1-2]"),
        ("OUT_OF_MEMORY|None|00:01:00|01:00:00|n1", "memory limit"), ("FAILED|NonZeroExitCode|00:01:00|01:00:00|n1", "it failed"),
    ],
)  # fmt: skip
def test_slurm_says_how_a_job_ended(sacct: str, says: str) -> None:
    state, reason, elapsed, limit, nodes = sacct.split("|")
    row = ("7", state, "0:0", "", "", "", "", "", reason, elapsed, limit, nodes)
    (part,) = find_job_parts("7", Answering(sacct="\x1f".join(row) + "\n", scontrol=""))
    assert says in part.describe()


def test_why_knows_what_is_made_on_the_nodes(tmp_path: Path) -> None:
    document = {"argv": ["srun", "--cpus-per-task=8"], "ranks": 4}
    launch = Launch(
        tmp_path,
        "s",
        "",
        (),
        "pyxis",
        "torchrun",
        "",
        "36_2",
        "1",
        "n[1-2]",
        UNKNOWN,
        "38",
        document,
    )
    value = {
        name: (explain_made(name, launch) or {}).get("value")
        for name in ("OMP_NUM_THREADS", "MASTER_PORT", "MASTER_ADDR", "FOO")
    }
    assert value["OMP_NUM_THREADS"] == "2"
    assert value["MASTER_PORT"] == str(10000 + (38 * 31 + 1) % 20000)
    assert value["MASTER_ADDR"] == "the IPv4 address of the first node of n[1-2]"
    assert value["FOO"] is None


def test_an_arrays_task_is_found_by_its_arrays_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("HPCSTACK_RUN", raising=False)
    folder = tmp_path / "hpcstack/launches/20260101T000000.0Z-aaaa"
    folder.mkdir(parents=True)
    keys = ("stack", "started", "runtime", "mode", "image_sha256")
    (folder / record.FILE).write_text(json.dumps({**dict.fromkeys(keys, ""), "command": []}))
    (folder / record.BEGAN).write_text("36_2\n0\nn1\n38\n")
    assert record.find_launch("36").job == record.find_launch("36_2").job == "36_2"
    assert record.find_launch("36").number == "38"


def test_an_array_is_one_row_with_all_its_tasks() -> None:
    from dataclasses import replace

    from hpcstack.cli.jobs_ import _make_row
    from hpcstack.slurm.state import JobState

    launch = Launch(
        Path(),
        "s-1",
        "",
        (),
        "pyxis",
        "plain",
        "",
        job="36_2",
        document={"argv": ["srun", "--array=0-3"]},
    )
    done, failed, runs = JobState("COMPLETED"), JobState("FAILED", 3), JobState("RUNNING")
    known = {"36_0": done, "36_1": failed, "36_2": done, "36": done, "360_1": runs}
    row = _make_row(launch, known)
    assert (row["job"], row["state"]) == ("36", "2 COMPLETED, 1 FAILED, exit 3")
    # Slurm has forgotten all but the last task, and each has recorded how it ended.
    recorded = replace(launch, tasks={"0": done, "1": failed, "2": done})
    assert _make_row(recorded, {"36": done, "36_2": done})["state"] == row["state"]
    assert _make_row(recorded, {})["state"] == row["state"]
    alone = replace(launch, job="37", document={"argv": ["srun"]})
    assert _make_row(alone, {"37": runs})["state"] == "RUNNING"
    assert _make_row(alone, known)["state"] == "?"


def test_what_is_no_number_of_a_job_has_no_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hpcstack.launch.jobs import find_logs

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(InputError, match="'abc' is not the number of a job"):
        find_logs("abc", Answering(scontrol=""))


def test_a_job_that_waits_has_no_log_yet() -> None:
    from hpcstack.launch.jobs import NotStarted, find_logs

    said = (
        "JobId=7 JobName=x JobState=PENDING Reason=Resources Dependency=(null) StdErr=/h/x-7.out "
        "StdOut=/h/x-7.out Power=\n"
    )
    with pytest.raises(
        NotStarted, match="has not started yet \\(Resources\\); it will write to /h/x-7.out"
    ):
        find_logs("7", Answering(scontrol=said))


def test_a_job_that_has_only_just_started_has_no_log_yet(tmp_path: Path) -> None:
    from hpcstack.launch.jobs import NotStarted, find_logs

    said = (
        "JobId=7 JobState=RUNNING Reason=None RunTime={} TimeLimit=00:10:00 StdErr={} StdOut={} "
        "Power=\n"
    )
    log = tmp_path / "x-7.out"
    with pytest.raises(
        NotStarted, match=f"only just started and has written nothing yet; it will write to {log}"
    ):
        find_logs("7", Answering(scontrol=said.format("00:00:01", log, log)))
    with pytest.raises(InputError, match="wrote to no file that exists"):
        find_logs("7", Answering(scontrol=said.format("00:10:01", log, log)))
    log.touch()
    assert find_logs("7", Answering(scontrol=said.format("00:00:01", log, log))) == [log]


def test_several_stacks_are_published_in_turn(tmp_path: Path) -> None:
    """Of a pattern those that are built; one that cannot be is said, and the others are published."""
    import subprocess
    import sys

    from support.modules import Place

    place = Place(tmp_path)
    folders = (
        f"{name}: {tmp_path}/{folder}\n"
        for name, folder in (("store", "store"), ("lock_dir", "locks"), ("module_root", "modules"))
    )
    (tmp_path / "site.yaml").write_text("".join(folders))
    for name in ("jax-25.04", "jax-26.06"):
        place.artifact(place.stack(name), name.encode())

    def typed(*words: str) -> tuple[int, Any]:
        argv = [
            sys.executable,
            "-m",
            "hpcstack",
            "--site",
            str(tmp_path / "site.yaml"),
            "publish",
            *words,
            "--json",
        ]
        done = subprocess.run(argv, capture_output=True, text=True)
        return done.returncode, json.loads(done.stdout) if done.stdout else done.stderr

    code, rows = typed("jax-*", "--dry-run")
    assert code == 0 and [row["stack"] for row in rows] == ["jax-25.04", "jax-26.06"], rows
    code, rows = typed("jax-25.04", "pytorch-24.10", "jax-26.06")
    assert code == 2 and [row["stack"] for row in rows] == [
        "jax-25.04",
        "pytorch-24.10",
        "jax-26.06",
    ], rows
    assert (
        rows[0]["release"] == "jax/25.04-r1"
        and "pytorch-24.10" in rows[1]["said"]
        and "release" not in rows[1]
    ), rows
    assert rows[2]["release"] == "jax/26.06-r1"
    code, said = typed("deepspeed-*")
    assert code == 2 and "nothing is built of deepspeed-*" in said, said


def test_undo_takes_back_what_was_named_and_a_withdrawn_image_is_not_published_unseen(
    tmp_path: Path,
) -> None:
    import subprocess
    import sys

    from support.modules import Place

    place = Place(tmp_path)
    (tmp_path / "site.yaml").write_text(
        json.dumps(
            {
                "store": f"{tmp_path}/store",
                "lock_dir": f"{tmp_path}/locks",
                "module_root": f"{tmp_path}/modules",
            }
        )
    )
    place.publish("jax-25.04", content=b"one", channel="production")
    for image in (b"A", b"B"):
        place.publish("jax-26.06", content=image, channel="production")

    def typed(*words: str) -> tuple[int, str]:
        argv = [sys.executable, "-m", "hpcstack", "--site", str(tmp_path / "site.yaml"), *words]
        done = subprocess.run(argv, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    assert typed("rollback", "jax/26.06", "--reason", "CVE")[0] == 0
    code, said = typed("undo", "jax/25.04")
    assert (
        code == 2
        and "the last change was not of jax/25.04" in said
        and place.tree.ledger("jax").aliases["26.06"] == "26.06-r1"
    ), said
    code, said = typed("promote", "jax/26.06-r2", "--override", "x")
    assert (
        code == 2
        and "is withdrawn" in said
        and "hpcstack rollback jax/26.06-r2 brings it back" in said
    ), said
    code, said = typed("publish", "jax-26.06", "--channel", "production", "--override", "")
    assert code != 0
    assert place.tree.ledger("jax").aliases["26.06"] == "26.06-r1"
    code, said = typed("publish", "jax-26.06")
    assert code == 0 and "NOTE: this image was withdrawn: jax/26.06-r2" in said, said
    first = place.store.images()[1].key
    code, said = typed("publish", "jax-26.06", "--image", first[:10])
    newest = place.tree.ledger("jax").entries[-1]
    assert code == 0 and newest.key == first and newest.release == "26.06-r4", said
    assert typed("undo", "jax/26.06", "--dry-run")[0] == 0


def test_folders_that_were_there_before_the_group_are_opened(tmp_path: Path) -> None:
    import os
    import stat

    from hpcstack.core.sharing import find_sharing

    if os.geteuid() != 0:
        pytest.skip("only root can choose a group that is not its own")
    (tmp_path / "images/key").mkdir(parents=True)
    (tmp_path / "images/key/file").write_text("x")
    (tmp_path / "images/key/secret").touch(0o600)
    (tmp_path / "images/private").mkdir(0o700)
    (tmp_path / "images/link").symlink_to("/etc/hostname")
    before = Path("/etc/hostname").stat()
    find_sharing("daemon", ()).open_old(tmp_path)
    for path in (tmp_path / "images", tmp_path / "images/key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o2775
        assert path.group() == "daemon"
    assert stat.S_IMODE((tmp_path / "images/key/file").stat().st_mode) == 0o664
    assert stat.S_IMODE((tmp_path / "images/key/secret").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "images/private").stat().st_mode) == 0o700
    assert Path("/etc/hostname").stat() == before, "nothing behind a link"


def test_offline_the_first_engine_that_can_shut_the_network_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from hpcstack.build.engines import ENGINES, choose_engine, find_engine

    for (
        name
    ) in ENGINES:  # loaded first: what is imported while something is patched would keep that
        find_engine(name)
    monkeypatch.setattr(
        "hpcstack.build.engines.machine.explain_refused_enclosure", lambda _: "an old kernel"
    )
    monkeypatch.setattr("hpcstack.build.engines.enroot.explain_no_namespaces", lambda _: "")
    monkeypatch.setattr("hpcstack.build.engines.os.geteuid", lambda: 1000)
    names = ("apptainer", "enroot", "mksquashfs", "unsquashfs", "setpriv", "unshare")
    tools = Answering(**dict.fromkeys(names, "x"))
    engine, why = choose_engine("auto", tools, offline=True)
    assert engine.name == "enroot"
    assert "only root can shut its network out" in why
    assert choose_engine("apptainer", tools, offline=True)[0].name == "apptainer"


def test_a_hint_for_extends_names_stacks_with_their_versions(tmp_path: Path) -> None:
    for name, text in {
        "mine": "name: mine\nmatrix: {version: {'1': {}, '2': {}}}\n",
        "child-1": "name: child\nversion: '1'\nextends: mine-3\n",
    }.items():
        (tmp_path / f"{name}.yaml").write_text(f"apiVersion: hpcstack/v1\n{text}")
    with pytest.raises(ProblemsError, match=r"named 'mine-3' \(did you mean 'mine-[12]'\?\)"):
        Catalog([tmp_path]).read(tmp_path / "child-1.yaml")
