"""Layers of site.yaml: precedence, origins, force, refusals."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from conftest import make_site
from hpcstack.core.errors import InputError, ProblemsError
from hpcstack.render.launchers import render_importer
from hpcstack.site import load


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setattr(load, "SYSTEM", tmp_path / "etc.yaml")
    return {"HOME": str(tmp_path / "home")}


def put(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def test_without_a_file_everything_is_below_home(environ: dict[str, str], tmp_path: Path) -> None:
    loaded = load.load_site(environ=environ)
    assert loaded.site.store == tmp_path / "home/.local/share/hpcstack/store"
    assert str(loaded.origins["store"]) == "built-in"


def test_each_layer_overrides_the_weaker_key_by_key(
    environ: dict[str, str], tmp_path: Path
) -> None:
    put(
        tmp_path / "etc.yaml",
        "name: a\nbuild: {tmpdir: /a, compression: gzip}\nstore: /a\nruntime: pyxis\n",
    )
    put(tmp_path / "home/.config/hpcstack/site.yaml", "name: b\nbuild: {tmpdir: /b}\nstore: /b\n")
    environ["HPCSTACK_SITE"] = put(tmp_path / "env.yaml", "name: c\nbuild: {tmpdir: /c}\n")
    explicit = put(tmp_path / "explicit.yaml", "name: d\n")
    loaded = load.load_site(explicit, environ)
    assert (loaded.site.name, loaded.site.build.tmpdir, str(loaded.site.store)) == ("d", "/c", "/b")
    assert (loaded.site.build.compression, loaded.site.runtime) == ("gzip", "pyxis")
    assert str(loaded.origins["build.tmpdir"]) == str(tmp_path / "env.yaml")
    assert str(loaded.origins["build.compression"]) == str(tmp_path / "etc.yaml")


def test_what_etc_forces_nothing_overrides(environ: dict[str, str], tmp_path: Path) -> None:
    put(tmp_path / "etc.yaml", "store: /a\nforce: {store: /forced}\n")
    explicit = put(tmp_path / "explicit.yaml", "store: /mine\n")
    loaded = load.load_site(explicit, environ)
    assert str(loaded.site.store) == "/forced"
    assert loaded.origins["store"].forced


def test_a_signature_that_etc_requires_is_required_of_everybody(
    environ: dict[str, str], tmp_path: Path
) -> None:
    wants = "{policy: {require_signed_base: true, defaults: {environment: {A: '1'}}}}"
    put(tmp_path / "etc.yaml", f"store: /a\nforce: {wants}\n")
    explicit = put(tmp_path / "explicit.yaml", "policy: {require_signed_base: false}\n")
    loaded = load.load_site(explicit, environ)
    assert loaded.site.policy.require_signed_base
    assert loaded.site.policy.defaults == {"environment": {"A": "1"}}
    assert not load.load_site("", {**environ, "HPCSTACK_SITE": ""}).site.policy.force


def test_force_elsewhere_is_refused_and_not_ignored(
    environ: dict[str, str], tmp_path: Path
) -> None:
    explicit = put(tmp_path / "explicit.yaml", "force: {store: /mine}\n")
    with pytest.raises(ProblemsError, match="explicit.yaml:1:1: force: `force` is allowed in"):
        load.load_site(explicit, environ)


def test_a_site_that_cannot_be_read(environ: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "explicit.yaml"
    path.write_bytes(b"name: \xff\n")
    with pytest.raises(InputError, match="not UTF-8"):
        load.load_site(str(path), environ)


def test_a_named_file_must_be_there(environ: dict[str, str]) -> None:
    with pytest.raises(InputError, match="--site"):
        load.load_site("/nowhere.yaml", environ)
    with pytest.raises(InputError, match="HPCSTACK_SITE"):
        load.load_site("", environ | {"HPCSTACK_SITE": "/nowhere.yaml"})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("stor: /a\n", ":1:1: stor: unknown key 'stor' (did you mean 'store'?)"),
        ("name: x\nstore: relative\n", ":2:8: store: relative must be an absolute path"),
        ('store: "/a,b"\n', ":1:8: store: '/a,b': no control characters"),
        (
            "build: {engine: dokcer}\n",
            (
                ":1:17: build.engine: input should be 'auto', 'apptainer', 'enroot', 'builtin' or "
                "'docker'"
            ),
        ),
        (
            "node_types: {a: {gpus: {model: H100, count: four}}}\n",
            ":1:45: node_types.a.gpus.count: input should be a valid integer",
        ),
        (
            "partitions: {gpu: {node_type: dgx1}}\nnode_types: {dgx: {}}\n",
            "there is no node type 'dgx1' (did you mean 'dgx'?)",
        ),
        (
            "registries: {nvcr.io: {mirror: 'http://x'}}\n",
            ":1:32: registries.nvcr.io.mirror: write the host alone, without http://",
        ),
        ("- a\n", ":1:1: a site file must be a mapping"),
    ],
)
def test_a_wrong_site_says_where(
    environ: dict[str, str], tmp_path: Path, text: str, says: str
) -> None:
    explicit = put(tmp_path / "explicit.yaml", text)
    with pytest.raises(ProblemsError) as caught:
        load.load_site(explicit, environ)
    assert says in str(caught.value)


def test_real_gpus_are_those_with_a_device_behind_them() -> None:
    virtual = load.NodeType(gpus=load.Gpus(model="virtual", count=4))
    assert (virtual.real_gpus, load.NodeType(gpus=load.Gpus(model="H100", count=8)).real_gpus) == (
        0,
        8,
    )


def test_the_policies_of_all_layers_are_one(tmp_path: Path) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text("policy: {defaults: {packages: {pip: [numpy]}, environment: {A: first}}}\n")
    second.write_text("policy: {defaults: {packages: {pip: [scipy]}, environment: {A: second}}}\n")
    loaded = load.load_site(str(second), {"HOME": str(tmp_path), "HPCSTACK_SITE": str(first)})
    assert loaded.policy.defaults
    assert loaded.policy.defaults.value["packages"]["pip"] == [
        "numpy",
        "scipy",
    ]
    assert str(loaded.policy.defaults.mark(("environment", "A"))) == f"{second}:1"
    assert loaded.site.policy.defaults["packages"]["pip"] == [
        "numpy",
        "scipy",
    ]  # what is shown is what counts


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("policy: [x]\n", "policy"),
        ("policy: {defaults: {base: x}}\n", "a policy cannot set 'base'"),
        ("policy: {force: {enviroment: {}}}\n", "did you mean 'environment'"),
        ("fabric: {settings: {PATH: {value: x, reason: y}}}\n", "'PATH' is not a setting of NCCL"),
        ("fabric: {settings: {NCCL_DEBUG: {value: INFO}}}\n", "the key 'reason' is missing"),
        (("registries: {nvcr.io: {credentials: " "s3cret-key}}\n"), ("a key itself never stands in " "site.yaml")),
        ("node_types: {n: {driver: new}}\n", "node_types.n.driver"),
        ("baselines: {nope: {x: {value: 1, source: s}}}\n", "there is no node type 'nope'"),
        ("node_types: {n: {}}\nbaselines: {n: {x: {value: inf, source: s}}}\n", "finite number"),
        (("node_types: {n: {}}\npartitions: {a: {node_type: n, default: true}, b: {node_type: n, " "default: true}}\n"),
         "more than one partition is the default"),
    ],
)  # fmt: skip
def test_a_wrong_site_says_so(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "site.yaml"
    path.write_text(text)
    with pytest.raises(ProblemsError) as caught:
        load.load_site(str(path), {"HOME": str(tmp_path)})
    assert says in caught.value.message, caught.value.message


def test_two_layers_of_nonsense_are_refused(tmp_path: Path) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text("policy: [x]\n")
    second.write_text("policy: {}\n")
    loaded = load.load_site(str(second), {"HOME": str(tmp_path), "HPCSTACK_SITE": str(first)})
    assert loaded.policy.defaults is None


def test_who_may_not_write_the_store_has_one_of_his_own(
    environ: dict[str, str], tmp_path: Path
) -> None:
    """admin 10: "must be writable by you"; and with a site.yaml of his own the site's stacks
    vanish.
    """
    store = tmp_path / "store"
    explicit = put(
        tmp_path / "explicit.yaml", f"store: {store}\nuser_store: {tmp_path}/of-{{user}}/hpcstack\n"
    )
    site = load.load_site(explicit, environ).site
    assert site.own_store == store and site.own_lock_dir == site.lock_dir, (
        "one that is not there is the site's to make"
    )
    store.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.access", lambda *_: False)
        assert site.own_store == store, "an administrator is told that the site's cannot be written"
        patch.setattr("hpcstack.site.load.Site._is_administrators", lambda _: False)
        name = pwd.getpwuid(os.geteuid()).pw_name
        assert site.own_store == tmp_path / f"of-{name}/hpcstack"
        assert site.own_lock_dir == site.own_store / "locks"
        plain = load.load_site(put(tmp_path / "plain.yaml", f"store: {store}\n"), environ).site
        assert plain.own_store == tmp_path / "home/.local/share/hpcstack/store"


def test_a_store_of_users_that_is_one_for_all_is_refused(
    environ: dict[str, str], tmp_path: Path
) -> None:
    explicit = put(tmp_path / "explicit.yaml", "user_store: /scratch/all\n")
    with pytest.raises(InputError, match="one folder for all users"):
        load.load_site(explicit, environ)


def test_a_module_tree_for_each_architecture(tmp_path: Path) -> None:
    one = make_site(tmp_path)
    assert one.module_tree == one.for_architecture("aarch64").module_tree == one.module_root
    assert one.tree_platform == ""
    assert one.every_architecture() == [one]

    two = make_site(tmp_path, modules={"by_architecture": True})
    assert two.module_tree == two.module_root / os.uname().machine
    assert two.for_architecture("aarch64").module_tree == two.module_root / "aarch64"
    assert two.for_architecture("aarch64").tree_platform == "linux/arm64"
    assert [site.module_tree.name for site in two.every_architecture()] == ["x86_64", "aarch64"]


def test_the_importer_takes_the_tree_of_the_node_that_it_runs_on(tmp_path: Path) -> None:
    for by_architecture, ending in ((False, ""), (True, "/$(uname -m)")):
        site = make_site(tmp_path, modules={"by_architecture": by_architecture})
        assert f"\nmodules={site.module_root}{ending}\n" in render_importer(site, "full")


def test_a_file_with_sixty_faults_names_the_first_fifty(
    environ: dict[str, str], tmp_path: Path
) -> None:
    """It ended in an IndexError."""
    path = tmp_path / "site.yaml"
    path.write_text("".join(f"key{number}: 1\n" for number in range(60)))
    with pytest.raises(ProblemsError) as refused:
        load.load_site(str(path), environ)
    assert len(refused.value.problems) == 50


def test_a_user_store_without_a_value_is_refused_as_no_path(
    environ: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "site.yaml"
    path.write_text("user_store:\n")
    with pytest.raises(ProblemsError, match="user_store: "):
        load.load_site(str(path), environ)
