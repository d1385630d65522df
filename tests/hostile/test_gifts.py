"""What somebody gives: bundles, recipes, images with signatures, reports: rows H4, M1, M8, M10 and
the low ones.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import make_site
from hpcstack.build.base import find_bundled_base, locate_imported_base
from hpcstack.build.bundle_apply import apply_bundle
from hpcstack.build.workbench import Workbench
from hpcstack.core import data
from hpcstack.core.errors import HpcstackError, InputError, ProblemsError
from hpcstack.core.files import digest_of
from hpcstack.core.process import Runner
from hpcstack.core.progress import Progress
from hpcstack.core.yaml import parse_yaml
from hpcstack.diagnose.examine_log import explain_log
from hpcstack.diagnose.signatures import read_signatures
from hpcstack.lock.model import Lock
from hpcstack.recipe.catalog import Catalog
from hpcstack.recipe.model import Stack
from hpcstack.render.site_files import make_lent_files
from hpcstack.report import (
    Outcome,
    Report,
    render_html,
    render_junit,
    render_markdown,
    render_prometheus,
)
from hpcstack.site.load import Site
from hpcstack.site.logins import build_for, list_secrets, redact_logins
from hpcstack.store.signing import (
    Statement,
    name_signature,
    name_statement,
    sign_image,
    verify_signature,
)
from support.bundles import RECIPE, make_bundle
from support.clock import processor_seconds

# -- bundles


def state(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*")) if folder.exists() else []


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return make_site(tmp_path / "here")


def test_h4_the_base_of_a_bundle_is_its_own_and_of_its_lock_alone(
    tmp_path: Path, here: Site
) -> None:
    from support.locks import base_lock

    done = apply_bundle(make_bundle(tmp_path, here), here, tmp_path / "mine", Progress())
    assert [path.name for path in done.recipes] == ["demo-1.yaml"]
    assert done.lock.name == "demo-1.lock.json"
    stack = Catalog([tmp_path / "mine"]).find("demo-1").stack
    lock = base_lock(stack)
    found = find_bundled_base(lock, "linux/amd64", here)
    assert found
    assert found.name == f"base-{digest_of(found)}.sqsh"
    assert not locate_imported_base(lock, "linux/amd64", here).exists(), (
        "no registry's digest vouches for it"
    )
    other = lock.model_copy(update={"spec_sha256": "0" * 64})
    assert find_bundled_base(other, "linux/amd64", here) is None
    assert lock.platform("linux/amd64").digest == other.platform("linux/amd64").digest


def test_h4_an_image_on_it_is_not_taken_for_one_on_the_registrys_base(tmp_path: Path) -> None:
    from hpcstack.build.engines.builtin import ENGINE
    from hpcstack.build.request import BuildRequest, find_built
    from support.modules import Place

    place = Place(tmp_path)
    stack = place.stack("miniforge-26.3")
    from support.locks import example_lock

    order = BuildRequest(stack, example_lock(stack), place.site, "linux/amd64", ENGINE)
    image = place.artifact(stack, b"x")
    folder = place.store.top / "images"
    (folder / image.key).rename(folder / order.key)
    record = json.loads((folder / order.key / "artifact.json").read_text())
    for bundled, wanted, found in (
        ("base-1", "", False),
        ("base-1", "base-1", True),
        ("", "", True),
        ("", "base-1", True),
    ):
        (folder / order.key / "artifact.json").write_text(
            json.dumps({**record, "key": order.key, "bundled": bundled})
        )
        assert (find_built(replace(order, bundled=wanted), place.store) is not None) == found
    assert replace(order, bundled="base-1").key == order.key


OTHERS: dict[str, dict[str, Any]] = {
    "another stack's recipe": {"files": {"recipes/pytorch-24.11.yaml": b"x"}},
    "a file of the home": {"files": {"recipes/.bashrc": b"x"}},
    "a template": {"files": {"recipes/_ngc.yaml": b"x"}},
    "another stack's lock": {"files": {"lock/pytorch-24.11.lock.json": b"{}"}},
    "a hidden package": {"files": {"packages/.x": b"x"}},
    "a base under packages": {"files": {"packages/base-0.sqsh": b"x"}},
    "a path that climbs": {"files": {"packages/../../x": b"x"}},
    "a folder that nobody knows": {"files": {"bin/sh": b"x"}},
    "two bases": {"files": {"base/other.sqsh": b"x"}},
    "no lock": {"files": {"lock/demo-1.lock.json": None}},
    "no size": {"named": {"packages/a_1_all.deb": {"sha256": "0" * 64}}},
    "a size that is none": {"named": {"packages/a_1_all.deb": {"sha256": "0" * 64, "size": "3"}}},
    "a negative size": {"named": {"packages/a_1_all.deb": {"sha256": "0" * 64, "size": -3}}},
    "a digest that is none": {"named": {"packages/a_1_all.deb": {"sha256": ["x"], "size": 3}}},
    "a name that climbs": {"manifest": {"stack": "../../x"}},
    "a platform that climbs": {"manifest": {"platform": "../../../x"}},
    "files that are none": {"manifest": {"files": ["x"]}},
    "another recipe in its own name": {
        "files": {"recipes/demo-1.yaml": RECIPE.replace("demo", "evil").encode()}
    },
    "another base image": {
        "files": {"recipes/demo-1.yaml": RECIPE.replace("debian:12", "debian:13").encode()}
    },
    "a recipe that extends ours": {
        "files": {"recipes/demo-1.yaml": b"extends: _ngc\n" + RECIPE.encode()}
    },
    "a lock of another stack": {"files": {"lock/demo-1.lock.json": b'{"stack": "x"}'}},
    "a base that it has, and names": {
        "manifest": {"base": {"name": "x.sqsh", "sha256": "0" * 64, "size": 1}}
    },
    "a base named otherwise": {"without_base": {"name": "x.sqsh", "sha256": "0" * 64, "size": 1}},
    "a base that climbs": {"without_base": {"name": "../x", "sha256": "0" * 64, "size": 1}},
    "a base that is a word": {"without_base": "x"},
    "no base, and none named": {"without_base": None},
    "another base": {"files": {}, "named": {"base/none": {"sha256": "0" * 64, "size": 1}}},
}


@pytest.mark.parametrize("what", OTHERS)
def test_m10_a_bundle_brings_its_own_and_nothing_else(
    tmp_path: Path, here: Site, what: str
) -> None:
    """Refused as a whole, before anything is written."""
    file = make_bundle(tmp_path, here, **OTHERS[what])
    (tmp_path / "mine").mkdir()
    with pytest.raises(HpcstackError):
        apply_bundle(file, here, tmp_path / "mine", Progress())
    assert state(tmp_path / "mine") == []
    assert state(here.lock_dir) == []
    assert not list((tmp_path / "cache").rglob("offline/*"))


def test_m10_a_base_that_is_only_named_is_the_one_that_is_here(tmp_path: Path, here: Site) -> None:
    """By its bytes: a file of the same name and size is not enough."""
    from support.locks import base_lock

    lock = base_lock(
        Catalog([Path(make_bundle(tmp_path, here).parent / "theirs")]).find("demo-1").stack
    )
    name = locate_imported_base(lock, "linux/amd64", here).name
    named = {"name": name, "sha256": hashlib.sha256(b"a base").hexdigest(), "size": 6}
    with pytest.raises(InputError, match="no earlier bundle has brought"):
        apply_bundle(
            make_bundle(tmp_path, here, without_base=named), here, tmp_path / "mine", Progress()
        )
    locate_imported_base(lock, "linux/amd64", here).write_bytes(b"A BASE")
    with pytest.raises(InputError, match="no earlier bundle has brought"):
        apply_bundle(
            make_bundle(tmp_path, here, without_base=named), here, tmp_path / "mine", Progress()
        )
    locate_imported_base(lock, "linux/amd64", here).unlink()
    locate_imported_base(lock, "linux/amd64", here).symlink_to("/a/file")  # as long as the base
    with pytest.raises(InputError, match="no earlier bundle has brought"):
        apply_bundle(
            make_bundle(tmp_path, here, without_base={**named, "size": 7}),
            here,
            tmp_path / "mine",
            Progress(),
        )
    locate_imported_base(lock, "linux/amd64", here).unlink()
    apply_bundle(make_bundle(tmp_path, here), here, tmp_path / "mine", Progress())
    apply_bundle(
        make_bundle(tmp_path, here, without_base=named), here, tmp_path / "mine", Progress()
    )
    found = find_bundled_base(lock, "linux/amd64", here)
    assert found
    assert found.read_bytes() == b"a base"


def test_m10_what_it_writes_is_named_before(tmp_path: Path, here: Site) -> None:
    said: list[str] = []

    class Heard(Progress):
        def __call__(self, text: str) -> None:
            said.append(text)

    apply_bundle(make_bundle(tmp_path, here), here, tmp_path / "mine", Heard())
    assert [line for line in said if line.startswith("writing")] == [
        f"writing {tmp_path}/mine/demo-1.yaml", f"writing {tmp_path}/mine/demo-1.lock.json"
    ]  # fmt: skip


def test_m10_a_recipe_of_ours_is_not_overwritten_nor_followed(tmp_path: Path, here: Site) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/demo-1.yaml").write_text(RECIPE + "# mine\n")
    with pytest.raises(InputError, match="already exists"):
        apply_bundle(make_bundle(tmp_path, here), here, tmp_path / "mine", Progress())
    (tmp_path / "mine/demo-1.yaml").unlink()
    (tmp_path / "mine/demo-1.yaml").symlink_to(tmp_path / "victim")
    with pytest.raises(HpcstackError):
        apply_bundle(make_bundle(tmp_path, here), here, tmp_path / "mine", Progress())
    assert not (tmp_path / "victim").exists()
    assert state(here.lock_dir) == []


def test_m10_what_create_packs_is_what_apply_takes(tmp_path: Path, here: Site) -> None:
    """The effective recipe, without what it extends, means the same: its lock is not stale."""
    from hpcstack.build.bundle import _recipes
    from hpcstack.lock.check import find_staleness
    from support.locks import base_lock

    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "_common.yaml").write_text(
        "environment: {A: 'yes', B: {prepend: [/x]}}\npackages: {pip: ['einops==0.8.0']}\n"
    )
    (folder / "demo.yaml").write_text(
        RECIPE.replace('version: "1"\n', "")
        + "extends: _common\nmatrix: {version: {'1': {}, '24.10': {lifecycle: {deprecate: '2027-01-01'}}}}\n"
        "run: [{name: two lines, command: \"echo 'a'\\necho b: c\\n\"}]\n"
    )
    for name in ("demo-1", "demo-24.10"):
        recipe = Catalog([folder]).find(name)
        [(path, text)] = _recipes(recipe).items()
        assert path == f"recipes/{name}.yaml"
        alone = tmp_path / name
        alone.mkdir()
        (alone / f"{name}.yaml").write_text(text)
        again = Catalog([alone]).find(name).stack
        assert again == recipe.stack
        assert not find_staleness(again, base_lock(recipe.stack))


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=600), st.integers(0, 12_000))
def test_any_damage_to_a_bundle_is_refused_or_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, at: int
) -> None:
    top = tmp_path_factory.mktemp("bundle")
    site = make_site(top / "here", build={"cachedir": str(top / "cache")})
    file = make_bundle(top, site)
    content = bytearray(file.read_bytes())
    content[at : at + len(noise)] = noise
    file.write_bytes(content)
    try:
        apply_bundle(file, site, top / "mine", Progress())
    except HpcstackError:
        return
    assert (top / "mine/demo-1.yaml").read_text() == RECIPE


# -- M1: logins


LOGINS = {
    "pip": {
        "index_url": "https://ci:s3cr%40t@pypi.site/simple",
        "extra_index_urls": ["https://tok3nt0ken@more.site/simple"],
    },
    "proxy": {"https": "http://me:pr0xypass@proxy:3128"},
    "apt": {"mirrors": {"http://deb.debian.org": "https://a:aptpass@apt.site"}},
    "git": {"mirrors": {"https://github.com/": "https://g:gitpass@git.site/"}},
    "conda": {"channel_alias": "https://c:condapass@conda.site"},
}
PASSWORDS = ("s3cr%40t", "s3cr@t", "tok3nt0ken", "pr0xypass", "aptpass", "gitpass", "condapass")


def test_m1_logins_are_lent_only_to_bases_of_trusted_registries(tmp_path: Path) -> None:
    site = make_site(
        tmp_path, build=LOGINS, registries={"nvcr.io": {"trusted": True}, "evil.example": {}}
    )
    for registry in ("evil.example", "docker.io"):
        lent = make_lent_files(site, build_for(site, registry))["hpcstack-site.sh"]
        assert not any(word in lent for word in PASSWORDS)
        assert "pypi.site/simple" in lent
        assert "git.site" in lent
    lent = make_lent_files(site, build_for(site, "nvcr.io"))["hpcstack-site.sh"]
    assert all(word in lent for word in PASSWORDS if word != "s3cr@t")
    assert build_for(make_site(tmp_path), "evil.example") == make_site(tmp_path).build


ODD_LOGINS = [
    "user:Sekret99@proxy:3128", "http://user:Se@kret99@proxy:3128", "http://u:pa'ss9999@proxy", "http://u:p w9999@proxy",
    "http://u:Sek/ret99@proxy", "https:\\\\u:pass9999@proxy", "https://conda.site/t/to-ken99/x", "https://pypi.site/simple?token=tok3n999",
]  # fmt: skip


@pytest.mark.parametrize("url", ODD_LOGINS)
def test_m1_logins_as_people_write_them(tmp_path: Path, url: str) -> None:
    words = (
        "Sekret99",
        "kret99",
        "pa'ss9999",
        "w9999",
        "ret99",
        "pass9999",
        "to-ken99",
        "tok3n999",
    )
    site = make_site(tmp_path, build={"proxy": {"https": url}, "pip": {"index_url": url}})
    lent = make_lent_files(site, build_for(site, "evil.example"))["hpcstack-site.sh"]
    assert not any(word in lent for word in words)
    assert "proxy" in lent or ".site" in lent
    said = redact_logins(f"a {url} b", site)
    assert not any(
        word in said for word in words if word in url and word not in ("kret99", "ret99")
    ), said
    import base64

    encoded = base64.b64encode(b"user:Sekret99").decode()
    first = make_site(tmp_path, build={"proxy": {"https": ODD_LOGINS[0]}})
    assert encoded not in redact_logins(f"Proxy-Authorization: Basic {encoded}", first)


def test_m1_logs_hold_no_login(tmp_path: Path) -> None:
    site = make_site(tmp_path, build=LOGINS)
    said = "\n".join(f"Looking in {word} and https://x:{word}@h/ {word}x" for word in PASSWORDS)
    clean = redact_logins(said + "\nhttps://other:unknown@elsewhere/", site)
    assert not any(word in clean for word in (*PASSWORDS, "unknown"))
    assert "elsewhere" in clean
    assert {"s3cr@t", "tok3nt0ken"} <= set(list_secrets(site))
    assert (
        redact_logins("nothing here: git@github.com:x/y 100%", site)
        == "nothing here: git@github.com:x/y 100%"
    )


def test_m1_the_log_of_a_lock_that_failed_is_the_users_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lock: Lock, stack: Stack
) -> None:
    """A base that prints what it finds, and an engine that hands it a shell."""
    from hpcstack.core.process import Completed
    from hpcstack.resolve import packages

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    site = make_site(tmp_path, build=LOGINS)
    seen: list[str] = []

    class Engine:
        name = "test"

        def usable(self, _: object) -> str:
            return ""

        def run_inside(self, _script: str, _folder: Path, job: Any, _runner: object) -> Completed:
            seen.append("".join(path.read_text() for path in job.lent.iterdir()))
            job.log.write_text(
                "== hpcstack step 1/1 x\nLooking in indexes: https://ci:s3cr%40t@pypi.site/simple\n"
            )
            return Completed(("x",), 1, ("tail: s3cr%40t",))

    monkeypatch.setattr(packages, "choose_engine", lambda *_: (Engine(), ""))
    monkeypatch.setattr(packages, "provide_base", lambda *_: tmp_path / "base.sqsh")
    monkeypatch.setattr(packages, "needed_bytes", lambda _: 0)
    with pytest.raises(HpcstackError) as error:
        packages.resolve_packages(stack, lock, Workbench(site, None, Runner(), Progress()))  # type: ignore[arg-type]
    [log] = (tmp_path / "cache").rglob("*-lock.log")
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert "pypi.site" in log.read_text()
    assert not any(
        word in text for word in PASSWORDS for text in (log.read_text(), error.value.message, *seen)
    )


# -- M8: recipes


@pytest.mark.parametrize(
    "text",
    [
        "x: " + "[" * 300_000, "{a: " * 100_000, "- " * 100_000, "? " * 50_000, "x: " + "[" * 1000 + "]" * 1000,
        "\n".join(f"k{n}: v" for n in range(90_000)), "x: [" + "a, " * 200_000 + "]", "!a " * 100_000, "--- a\n" * 80_000,
        "[&a x, " * 1000, "x:\n" + "".join(" " * n + "a:\n" for n in range(1, 1000)), "x: " + "{[" * 100_000,
    ],
)  # fmt: skip
def test_m8_yaml_that_was_made_to_hurt_is_refused_in_a_second(text: str) -> None:
    began = processor_seconds()
    with pytest.raises(ProblemsError) as error:
        parse_yaml(text, "x.yaml")
    assert processor_seconds() - began < 3
    assert len(error.value.message) < 20_000


def test_m8_scripts_with_brackets_are_taken() -> None:
    script = "\n".join(f"      if [[ ${{a[{n}]}} = ']' ]]; then echo '[['; fi" for n in range(500))
    assert (
        "echo"
        in parse_yaml(f"run:\n  - name: x\n    command: |\n{script}\n", "x").value["run"][0][
            "command"
        ]
    )


def test_m8_files_whose_extends_wander(tmp_path: Path) -> None:
    names = ["-".join("abcdefgh"[: n + 1]) for n in range(8)]
    for name in names:
        for suffix in ("", "-x"):
            (tmp_path / f"{name}{suffix}.yaml").write_text(
                "apiVersion: hpcstack/v1\nextends: a-b-c-d-e-f-g-h-x-y\n"
            )
    began = processor_seconds()
    for name in names:
        with pytest.raises(HpcstackError):
            Catalog([tmp_path]).read(tmp_path / f"{name}.yaml")
    Catalog([tmp_path]).names()
    assert processor_seconds() - began < 5


def test_m8_a_matrix_that_multiplies(tmp_path: Path) -> None:
    values = "\n".join(f"  K{n}: v" for n in range(2000))
    axis = ", ".join(f"'{n}'" for n in range(30))
    (tmp_path / "demo.yaml").write_text(
        RECIPE.replace('version: "1"\n', "")
        + f"matrix: {{version: [{axis}], variant: [{', '.join(f'v{n}' for n in range(30))}]}}\n"
        f"environment:\n{values}\n"
    )
    began = processor_seconds()
    with pytest.raises(ProblemsError, match="the limit is"):
        Catalog([tmp_path]).read(tmp_path / "demo.yaml")
    assert processor_seconds() - began < 3


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="abc:-[]{}\"'\n #!&*|>?%@`,\t0\u00e9\x00", max_size=300))
def test_any_text_is_a_recipe_or_refused(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    folder = tmp_path_factory.mktemp("r")
    (folder / "a-1.yaml").write_text(text, encoding="utf-8", newline="")
    with contextlib.suppress(HpcstackError):
        Catalog([folder]).read(folder / "a-1.yaml")


# -- signatures


@pytest.fixture
def key(tmp_path: Path) -> str:
    Runner().output(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")])
    return str(tmp_path / "key")


def image_of(tmp_path: Path, name: str, content: bytes) -> Path:
    path = tmp_path / name / "image.sqsh"
    path.parent.mkdir()
    path.write_bytes(content)
    return path


def test_low_a_signature_is_of_a_stack_and_its_lock(tmp_path: Path, key: str) -> None:
    image = image_of(tmp_path, "a", b"image")
    what = Statement(digest_of(image), "pytorch-24.11", "1" * 64)
    sign_image(image, key, Runner(), what)
    good, said = verify_signature(image, f"{key}.pub", Runner(), what)
    assert good
    assert "Good" in said
    assert "signed 20" in said
    for other, named in (
        (replace(what, stack="pytorch-25.10"), "stack"), (replace(what, lock_sha256="2" * 64), "lock sha256"),
        (replace(what, sha256="3" * 64), "sha256"),
    ):  # fmt: skip
        good, said = verify_signature(image, f"{key}.pub", Runner(), other)
        assert not good
        assert f"signed with {named}" in said


def test_low_a_good_signature_of_another_image_does_not_count(tmp_path: Path, key: str) -> None:
    one, other = image_of(tmp_path, "a", b"image"), image_of(tmp_path, "b", b"evil")
    sign_image(one, key, Runner(), Statement(digest_of(one), "pytorch-24.11"))
    for place in (name_signature, name_statement):
        place(other).write_bytes(place(one).read_bytes())
    good, said = verify_signature(
        other, f"{key}.pub", Runner(), Statement(digest_of(other), "pytorch-24.11")
    )
    assert not good
    assert "sha256" in said


@pytest.mark.parametrize(
    "how", ["statement", "signature", "key", "none", "bytes alone", "no statement", "link"]
)
def test_low_what_is_no_signature(tmp_path: Path, key: str, how: str) -> None:
    image = image_of(tmp_path, "a", b"image")
    what = Statement(digest_of(image), "pytorch-24.11")
    sign_image(image, key, Runner(), what)
    public = f"{key}.pub"
    if how == "statement":
        name_statement(image).write_text(
            name_statement(image).read_text().replace("24.11", "24.12")
        )
        what = replace(what, stack="pytorch-24.12")
    elif how == "signature":
        name_signature(image).write_text(
            "-----BEGIN SSH SIGNATURE-----\nx\n-----END SSH SIGNATURE-----\n"
        )
    elif how == "key":
        Runner().output(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "other")]
        )
        public = str(tmp_path / "other.pub")
    elif how == "none":
        name_signature(image).unlink()
    elif how == "bytes alone":
        name_statement(image).unlink()
    elif how == "no statement":
        name_statement(image).write_text("[]")
        Runner().output(
            [
                "ssh-keygen",
                "-q",
                "-Y",
                "sign",
                "-f",
                key,
                "-n",
                "hpcstack-image",
                str(name_statement(image)),
            ]
        )
        name_statement(image).with_name(name_statement(image).name + ".sig").rename(
            name_signature(image)
        )
    elif how == "link":
        name_signature(image).rename(tmp_path / "sig")
        name_signature(image).symlink_to(tmp_path / "sig")
        with pytest.raises(InputError):
            verify_signature(image, public, Runner(), what)
        return
    good, said = verify_signature(image, public, Runner(), what)
    assert not good
    assert said


# -- what is shown


def report(**changes: Any) -> Report:
    found = {
        "stack": "x", "image": "i", "image_sha256": "0", "suite": "1", "runtime": "r", "started": "2026-01-01T00:00:00+00:00",
        "seconds": 1.0,
    }  # fmt: skip
    return Report.model_validate(found | changes)


def test_figures_of_hundreds_of_digits_are_none() -> None:
    one = Outcome.model_validate(
        {"code": "a.b", "status": "PASS", "figures": {"x_s": 10**400, "y_s": 1}}
    )
    assert one.figures == {"y_s": 1.0}


def test_markdown_is_cells() -> None:
    text = render_markdown(
        report(
            runtime="r\n\n<script>x</script>\n| PASS | forged |",
            tier="t` <img onerror=x>",
            image_sha256="<b>",
        )
    )
    assert "<script" not in text
    assert "<img" not in text
    assert "<b>" not in text
    assert "\n| PASS | forged" not in text


def test_a_requirement_that_nests(tmp_path: Path) -> None:
    (tmp_path / "a-1.yaml").write_text(
        RECIPE.replace("demo", "a") + "packages: {pip: ['a; " + "(" * 3000 + "']}\n"
    )
    with pytest.raises(HpcstackError):
        Catalog([tmp_path]).read(tmp_path / "a-1.yaml")
    assert Catalog([tmp_path]).names()


def test_exclude_of_many_rules(tmp_path: Path) -> None:
    rules = ", ".join("{version: 'x'}" for _ in range(5000))
    versions = ", ".join(f"'{n}'" for n in range(900))
    text = (
        RECIPE.replace('version: "1"\n', "")
        + f"matrix: {{version: [{versions}], exclude: [{rules}]}}\n"
    )
    (tmp_path / "demo.yaml").write_text(text)
    began = processor_seconds()
    with pytest.raises(ProblemsError) as error:
        Catalog([tmp_path]).read(tmp_path / "demo.yaml")
    assert processor_seconds() - began < 5
    assert len(error.value.message) < 100_000


ODD = [
    {"name": "x", "x": [1, 2], "y": ["a", "b"]}, {"name": "x", "x": [1], "y": None}, {"x": [1], "y": [1]}, "x", None, 5,
    {"name": "m", "kind": "matrix", "labels": ["a"], "values": [[1], [2], [3]]}, {"name": "m", "kind": "matrix"},
    {"name": "m", "kind": "matrix", "labels": ["a", "b"], "values": [[1], 5]}, {"name": "w", "kind": "words", "labels": 5},
    {"name": "x", "x": [float("nan")], "y": [float("inf")]}, {"name": "x", "x": [1, 2], "y": [1]}, {"name": "k", "kind": "other"},
    {"name": "x", "x": [1, 2], "y": [1, 2], "gate": "x"}, {"name": "x", "x": [1, 2], "y": [1, 2], "x_unit": ["b"]},
]  # fmt: skip


@pytest.mark.parametrize("series", ODD, ids=str)
def test_low_odd_series_are_left_out(series: Any) -> None:
    good = {"name": "good", "x": [1, 2], "y": [3, 4]}
    one = Outcome.model_validate(
        {
            "code": "a.b",
            "status": "PASS",
            "series": [series, good],
            "figures": {"x_s": float("inf"), "y_s": 1},
        }
    )
    assert one.series == (good,)
    assert one.figures == {"y_s": 1.0}
    for form in (render_html, render_junit, render_markdown, render_prometheus):
        assert form(report(outcomes=(one,)))


@pytest.mark.parametrize("started", ["", "yesterday", "9999-99-99", "2026", "\x00"])
def test_low_odd_dates_are_no_report(started: str) -> None:
    with pytest.raises((ValueError, OverflowError)):
        render_prometheus(report(started=started))
    from hpcstack.publish.reports import read_report

    path = Path(os.environ.get("PYTEST_TMP", "/tmp")) / f"hpcstack-report-{os.getpid()}.json"
    path.write_text(json.dumps({**report().model_dump(mode="json"), "started": started}))
    try:
        with pytest.raises(InputError):
            read_report(path)
    finally:
        path.unlink()


@pytest.mark.parametrize(
    "bad",
    [
        "\r",
        "\x1b[2J",
        "\x85",
        "\u2028",
        "\x00",
        "\ud800",
        "\ufffe",
        "]]>",
        "</testsuite>",
        '"} 1\nevil{x="',
    ],
)
def test_what_leaves_a_reports_formats(bad: str) -> None:
    from xml.etree import ElementTree

    one = Outcome.model_validate(
        {"code": f"a.b{bad}", "status": "FAIL", "measured": bad, "evidence": bad, "where": [bad]}
    )
    whole = report(outcomes=(one,), stack=f"x{bad}", stand_in=bad)
    root = ElementTree.fromstring(render_junit(whole).encode("utf-8", "replace"))
    assert root.tag == "testsuite"
    assert len(root.findall("testcase")) == 1
    lines = render_prometheus(whole).splitlines()
    assert all(line.startswith(("#", "hpcstack_")) for line in lines)
    assert not any("evil{" in line.partition(" ")[0] for line in lines if line.startswith("evil"))
    assert len(render_markdown(whole).split("\n| FAIL")) <= 2


def _seconds(pattern: re.Pattern[str], line: str) -> float:
    began = processor_seconds()
    pattern.search(line)
    return processor_seconds() - began


def test_low_no_signature_takes_long_over_a_line() -> None:
    data = Path(__file__).parents[1] / "data"
    lines = {id_: line for name in sorted(path.name for path in data.glob("log-lines*.yaml"))
             for id_, line in parse_yaml((data / name).read_text(), "x").value.items()}  # fmt: skip
    for one in read_signatures():
        words = lines[one.id].split(" ")
        for piece in {
            *words,
            *(lines[one.id][n : n + 9] for n in range(0, 60, 9)),
            "/manifests/",
            "a.",
            "a/",
        } - {""}:
            line = (lines[one.id][: len(lines[one.id]) // 2] + piece * 4096)[:4096]
            assert min(_seconds(one.pattern, line) for _ in range(3)) < 0.05, (one.id, piece)
    began = processor_seconds()
    explain_log("\x1b]" * 200_000)
    assert processor_seconds() - began < 2


def test_the_packages_own_recipes_are_within_the_bounds() -> None:
    assert len(Catalog([data.find_data_folder("recipes")]).names()) == 35
