"""Publishing, by the real Lmod and the real Environment Modules: what users load, while it flips
and after.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.modules import (
    ENVIRONMENT_MODULES,
    Place,
    bash,
    clean,
    modulepath,
    own,
    report,
    seen,
    snapshot,
    system,
)

BOTH = [
    pytest.param("lmod", marks=pytest.mark.lmod),
    pytest.param("emodules", marks=pytest.mark.emodules),
]
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(autouse=True)
def _environment_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Publishing tries each release in both."""
    monkeypatch.setenv("MODULES_CMD", str(ENVIRONMENT_MODULES))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    made.publish()
    return made


def session(
    place: Place, which: str, before: str, after: str
) -> tuple[dict[str, str], dict[str, str], str]:
    """The environments of one shell before BEFORE, and after a second release was published and
    AFTER ran.
    """
    go, done = place.top / "go", place.top / "done"
    script = f'module() {{ eval "$({system(which)} bash "$@")"; }}; env -0 >"$1/one"; {before}; touch "$1/done"; ' \
        f'until [ -e "$1/go" ]; do sleep 0.02; done; {after}; env -0 >"$1/two"'  # fmt: skip
    with subprocess.Popen(["bash", "-c", script, "bash", str(place.top)], env=clean(place, which), stderr=subprocess.PIPE,
                          text=True) as shell:  # fmt: skip
        while not done.exists():
            assert shell.poll() is None
        place.publish(content=b"the second")
        go.touch()
        said = shell.communicate(timeout=60)[1]
    return snapshot(place.top / "one"), snapshot(place.top / "two"), said


@pytest.mark.parametrize("which", BOTH)
@pytest.mark.parametrize(
    "after", ["module unload pytorch", "module purge", "module unload pytorch/24.11-r1"]
)
@pytest.mark.parametrize("name", ["pytorch", "pytorch/24.11", "pytorch/24.11-r1"])
@pytest.mark.soak(
    "three names, three ways to unload",
    but=lambda name, after: name == "pytorch/24.11" or after == "module purge",
)
def test_what_was_loaded_before_a_flip_is_unloaded_whole(
    place: Place, which: str, name: str, after: str
) -> None:
    before, back, said = session(place, which, f"module load {name}", after)
    assert back == before, said


@pytest.mark.parametrize("which", BOTH)
def test_unloading_by_the_alias_after_a_flip_never_leaks(place: Place, which: str) -> None:
    """The alias means another release by then: the loaded one stays whole, or goes whole."""
    before, after, _ = session(
        place, which, "module load pytorch/24.11", "module unload pytorch/24.11"
    )
    loaded = {name: value for name, value in after.items() if name.startswith("HPCSTACK_")}
    if loaded:
        assert loaded["HPCSTACK_RELEASE"] == "pytorch/24.11-r1"
        assert "releases/pytorch/24.11-r1/bin" in after["PATH"]
    else:
        assert after == before


@pytest.mark.parametrize("which", BOTH)
def test_a_swap_after_a_flip_leaves_only_the_new_one(place: Place, which: str) -> None:
    before, after, said = session(
        place, which, "module load pytorch/24.11", "module swap pytorch pytorch/24.11-r2"
    )
    changed = {name for name, value in after.items() if before.get(name) != value}
    assert changed == {
        "PATH",
        "HPCSTACK_IMAGE",
        "HPCSTACK_IMAGE_SHA256",
        "HPCSTACK_RELEASE",
        "HPCSTACK_STACK",
    }, said
    assert after["PATH"] == f"{place.store.top}/releases/pytorch/24.11-r2/bin:{before['PATH']}"


@pytest.mark.lmod
def test_the_family_swaps_another_image_in(place: Place) -> None:
    place.publish("jax-26.06")
    done = bash(
        place, "lmod", "module load pytorch; module load jax; module -t list 2>&1; echo $PATH"
    )
    assert "jax/26.06-r1" in done.stdout
    assert "pytorch/24.11-r1" not in done.stdout.split("jax/26.06-r1")[0]
    assert (
        done.stdout.splitlines()[-1] == f"{place.store.top}/releases/jax/26.06-r1/bin:/usr/bin:/bin"
    )


@pytest.mark.emodules
def test_another_image_beside_the_first_is_refused_by_environment_modules(place: Place) -> None:
    place.publish("jax-26.06")
    done = bash(
        place, "emodules", "module load pytorch; module load jax; module -t list 2>&1; echo $PATH"
    )
    assert (
        "pytorch/24.11-r1" in done.stdout and done.stdout.splitlines()[-1].count("releases") == 1
    ), done.stdout


@pytest.mark.parametrize("which", BOTH)
def test_a_collection_restores_what_it_saved(place: Place, which: str) -> None:
    bash(place, which, "module load pytorch/24.11; module save mine")
    place.publish(content=b"the second")
    done = bash(
        place,
        which,
        "module restore mine; echo $HPCSTACK_RELEASE; module unload pytorch; echo $PATH",
    )
    pinned = {"lmod": "pytorch/24.11-r1", "emodules": "pytorch/24.11-r2"}[
        which
    ]  # EM saves a default without its version
    assert done.stdout.split()[-2:] == [pinned, "/usr/bin:/bin"], done.stdout + done.stderr


@pytest.mark.lmod
def test_spider_finds_what_is_inside_and_help_shows_the_report(place: Place) -> None:
    stack = place.stack()
    shown = report(place.artifact(stack), {"ddp.fp32": "PASS"})
    place.publisher.publish(stack, place.artifact(stack), "production", shown, {})
    assert "pytorch/24.11-r2" in bash(place, "lmod", "module spider deepspeed/0.16.2 2>&1").stdout
    said = bash(place, "lmod", "module help pytorch/24.11 2>&1").stdout
    for part in (
        "NCCL: 2.23.4",
        "PASS (1 PASS)",
        "2026-11-20",
        "node1, node2",
        "production",
        "525.60.13 or newer",
    ):
        assert part in said, said


@pytest.mark.parametrize("which", BOTH)
def test_the_default_moves_with_promote_and_back_with_rollback(place: Place, which: str) -> None:
    from hpcstack.releases.changes import roll_back_version

    def default() -> str:
        return bash(place, which, "module load pytorch; echo $HPCSTACK_RELEASE").stdout.strip()

    old, new = place.stack(), place.stack("pytorch-25.10")
    place.publisher.publish(old, place.artifact(old), "production", None, {})
    assert default() == "pytorch/24.11-r2"
    place.publish("pytorch-25.10", content=b"25.10")
    assert default() == "pytorch/24.11-r2", "what is only tested does not become the default"
    place.publisher.publish(new, place.artifact(new, b"25.10"), "production", None, {})
    assert default() == "pytorch/25.10-r2"
    place.publisher.change(
        "pytorch",
        "rollback",
        lambda ledger, event: roll_back_version(ledger, "25.10", "", event),
        force=True,
    )
    assert default() == "pytorch/24.11-r2"
    assert (
        bash(place, which, "module load pytorch/25.10; echo $HPCSTACK_RELEASE").stdout.strip()
        == "pytorch/25.10-r1"
    )
    assert "25.10-r2" not in seen(place, which)


@pytest.mark.parametrize("which", BOTH)
def test_dates_warn_and_refuse_when_a_module_is_loaded(place: Place, which: str) -> None:
    from hpcstack.releases.changes import retire_version
    from hpcstack.releases.ledger import Dates

    def dated(dates: Dates, today: str = "2026-01-01") -> None:
        place.publisher.change(
            "pytorch",
            "retire",
            lambda ledger, event: retire_version(ledger, "24.11", dates, today, event),
        )

    def load(**more: str) -> tuple[str, str]:
        done = bash(
            place, which, "module load pytorch/24.11-r1; echo loaded=$HPCSTACK_RELEASE", **more
        )
        return done.stdout.split("loaded=")[1].strip(), " ".join(done.stderr.split())

    dated(Dates("2099-01-01", "2099-02-01"))
    assert load() == ("pytorch/24.11-r1", "")
    dated(Dates("2020-01-01", "2099-02-01", "pytorch/25.10", "CUDA 12 goes"))
    release, said = load()
    assert release == "pytorch/24.11-r1"
    assert (
        "deprecated since 2020-01-01, and refused from 2099-02-01 on (CUDA 12 goes); use "
        "pytorch/25.10"
    ) in said
    assert load(SLURM_JOB_ID="7") == ("pytorch/24.11-r1", ""), "a job's log is not cluttered"
    dated(Dates("2020-01-01", "2020-02-01", "pytorch/25.10"), today="2026-01-01")
    release, said = load(SLURM_JOB_ID="7")
    assert release == ""
    assert "was retired on 2020-02-01; use pytorch/25.10" in said
    assert "24.11" not in seen(place, which)


@pytest.mark.parametrize("which", BOTH)
def test_an_image_that_is_gone_refuses_and_changes_nothing(place: Place, which: str) -> None:
    image = place.store.artifact(place.tree.ledger("pytorch").entries[0].key)
    assert image
    image.image.unlink()
    done = bash(
        place,
        which,
        "env -0 >$HOME/a; module load pytorch; env -0 >$HOME/b; echo; module spider pytorch 2>&1",
    )
    home = place.top / "home"
    assert snapshot(home / "a") == snapshot(home / "b")
    assert "cannot be read on this node" in " ".join(done.stderr.split())
    for trace in ("while executing", "(file ", "contact", "stack traceback"):
        assert trace not in done.stderr
    if which == "lmod":
        assert "cannot be read" not in done.stdout and "pytorch/24.11" in done.stdout, (
            "spider does not look at images"
        )


@pytest.mark.parametrize("which", BOTH)
@pytest.mark.parametrize(
    ("driver", "job", "loads", "says"),
    [
        ("580.65.06", "", True, ""), ("525.60.13", "", True, ""), ("470.10", "", True, "forward compatibility"),
        ("470.10", "7", True, ""), ("460.32", "", True, ("needs driver 525.60.13 or newer; this node has " "460.32")),
        ("460.32", "7", False, ("needs driver 525.60.13 or newer; this node has " "460.32")), ("", "7", True, ""),
        ("garbage", "", True, ""),
    ],
)  # fmt: skip
def test_the_driver_of_the_node_is_looked_at(
    place: Place, which: str, driver: str, job: str, loads: bool, says: str
) -> None:
    """/sys/module/nvidia/version is a file of ours in a mount namespace: no NVIDIA driver runs on
    the test machine.
    """
    version = place.top / "version"
    version.write_text(f"{driver}\n")
    lay = (
        'mount -t tmpfs none /sys/module && mkdir /sys/module/nvidia && cp "$1" /sys/module/nvidia '
        '&& shift && exec "$@"'
    )
    over = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", lay, "sh", str(version)]
    function = (
        f'module() {{ eval "$({system(which)} bash "$@")"; }}; module load pytorch; echo '
        f'"=$HPCSTACK_RELEASE"'
    )
    env = clean(place, which) | ({"SLURM_JOB_ID": job} if job else {})
    done = subprocess.run(
        [*(over if driver else []), "bash", "-c", function], env=env, capture_output=True, text=True
    )
    assert done.stdout.strip().endswith("=pytorch/24.11-r1") == loads, done.stdout + done.stderr
    said = " ".join(done.stderr.split())  # module systems break lines
    assert says in said and (says or not said), said
    assert "while executing" not in said


SHELLS = {
    "bash": 'eval "$({} bash {})"',
    "zsh": 'eval "$({} zsh {})"',
    "tcsh": 'eval "`{} tcsh {}`"',
    "fish": "{} fish {} | source",
}


@pytest.mark.shells
@pytest.mark.parametrize("which", BOTH)
@pytest.mark.parametrize("shell", list(SHELLS))
def test_every_shell_loads_and_unloads(tmp_path: Path, which: str, shell: str) -> None:
    place = Place(tmp_path)
    stack = place.stack(summary='It\'s 100% "quoted" $HOME `id` \\n ; ] } { [exit]')
    place.publish(stack=stack)
    load, unload = (
        SHELLS[shell].format(system(which), words) for words in ("load pytorch", "unload pytorch")
    )
    script = f"env -0 >{tmp_path}/a\n{load}\nenv -0 >{tmp_path}/b\n{unload}\nenv -0 >{tmp_path}/c\n"
    options = {"tcsh": ["-f"], "zsh": ["-f"], "fish": ["--no-config"], "bash": ["--norc"]}[shell]
    done = subprocess.run([shell, *options, "-c", script] if shell != "tcsh" else [shell, *options], env=clean(place, which),
                          input=script, capture_output=True, text=True)  # fmt: skip
    before, loaded, after = (snapshot(tmp_path / name) for name in "abc")
    assert after == before, done.stderr
    assert loaded["HPCSTACK_RELEASE"] == "pytorch/24.11-r1", done.stderr
    assert loaded["PATH"].startswith(f"{place.store.top}/releases/pytorch/24.11-r1/bin:")
    told = subprocess.run(["bash", "-c", f"{system(which)} bash help pytorch 2>&1"], env=clean(place, which), capture_output=True,
                          text=True).stdout  # fmt: skip
    assert stack.summary in told


@pytest.mark.lmod
def test_names_without_room_are_behind_a_gateway(tmp_path: Path) -> None:
    place = Place(tmp_path, modules={"direct": ["jax"]})
    behind = place.publish()
    assert behind.load == "module load hpcstack/pytorch pytorch/24.11"
    assert place.publish("jax-26.06").load == "module load jax/26.06"
    for which in ("lmod", "emodules"):
        done = bash(
            place,
            which,
            (
                "module load hpcstack/pytorch pytorch/24.11; echo $HPCSTACK_RELEASE; module purge; "
                "echo $MODULEPATH"
            ),
        )
        assert done.stdout.split() == ["pytorch/24.11-r1", modulepath(place, which)], done.stderr
    assert "hpcstack/pytorch" in bash(place, "lmod", "module spider pytorch/24.11 2>&1").stdout


@pytest.mark.lmod
def test_the_spider_cache_follows_every_flip(place: Place) -> None:
    rc = place.site.module_root / "spider/lmodrc.lua"

    def cached() -> str:
        return bash(place, "lmod", "module -t spider pytorch 2>&1", LMOD_RC=str(rc)).stdout

    assert "24.11-r1" in cached()
    place.publish(content=b"two")
    assert "24.11-r2" in cached()
    assert "24.11-r1" not in cached()
    assert not place.tree.stale


@pytest.mark.parametrize(
    ("changes", "says"),
    [({"name": "hpcstack"}, "gateways"), ({"variant": "r1"}, "taken for a release")],
)
def test_a_name_that_would_be_taken_for_another_is_refused(
    tmp_path: Path, changes: dict[str, str], says: str
) -> None:
    from hpcstack.core.errors import InputError

    place = Place(tmp_path)
    with pytest.raises(InputError, match=says):
        place.publish(stack=place.stack().model_copy(update=changes))
    assert not place.tree.names()


def test_the_books_of_module_systems_are_not_compared() -> None:
    assert own(["A=1", "LMOD_X=2", "__MODULES_Y=3", "MODULES_FAMILY_Z=4"]) == {"A": "1"}
