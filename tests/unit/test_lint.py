"""What lint warns of, each at its line, and what it does not warn of."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from conftest import make_site
from hpcstack.lint import find_warnings
from hpcstack.recipe.catalog import Catalog, Recipe
from hpcstack.site.load import Site
from support.locks import base_lock

TODAY = date(2026, 11, 21)


def recipe(folder: Path, body: str = "", image: str = "nvcr.io/nvidia/pytorch:24.11-py3") -> Recipe:
    path = folder / "demo-1.yaml"
    path.write_text(
        f'apiVersion: hpcstack/v1\nname: demo\nversion: "1"\nsummary: s\nbase: {{image: '
        f'"{image}"}}\n{body}'
    )
    return Catalog([folder]).read(path)[0]


def said(found: Recipe, site: Site, *, locked: bool = True, today: date = TODAY) -> list[str]:
    lock = base_lock(found.stack) if locked else None
    return [
        str(problem).rpartition("demo-1.yaml")[2]
        for problem in find_warnings(found, site, lock, ["new-1"], today, needs_lock=True)
    ]


def nodes(model: str, driver: str = "") -> dict[str, object]:
    return {"node_types": {"dgx": {"gpus": {"model": model, "count": 8}, "driver": driver}}}


def test_a_tag_without_a_digest_where_no_lock_is(tmp_path: Path, site: Site) -> None:
    found = recipe(tmp_path)
    assert said(found, site, locked=False) == [
        (
            ":5:15: warning: base.image: the tag may change under you; `hpcstack lock demo-1` "
            "writes down its digest"
        )
    ]
    assert said(found, site) == []
    pinned = recipe(tmp_path, image=f"nvcr.io/nvidia/pytorch:24.11-py3@sha256:{'0' * 64}")
    assert said(pinned, site, locked=False) == []


@pytest.mark.parametrize(
    ("requirement", "warns"),
    [
        ("torch", False),
        ("torch>=2.0", False),
        ("torch>=2.6", True),  # 2.6.0a0 is a pre-release below 2.6 (PEP 440)
        ("torch==2.6.0", True),
        ("Torch==2.6.0", True),
        ("nvidia-nccl-cu12", True),
        ("transformer-engine==2.1", True),
        ("flash_attn==2.7.4", True),
        ("torchmetrics==1.0", False),
        ("deepspeed==0.19.8", False),
    ],
)
def test_pip_requirements_that_would_replace_what_the_base_brings(
    tmp_path: Path, site: Site, requirement: str, warns: bool
) -> None:
    found = said(recipe(tmp_path, f"packages: {{pip: [{requirement}]}}\n"), site)
    assert [":6:18: warning: packages.pip[0]: would replace" in line for line in found] == [
        True
    ] * warns, found


@pytest.mark.parametrize(
    ("package", "warns"),
    [("libnccl2", True), ("rdma-core", True), ("libucx0", True), ("openmpi-bin", True), ("cuda-toolkit-12-6", True),
     ("infiniband-diags", False), ("perftest", False)],
)  # fmt: skip
def test_apt_packages_that_would(tmp_path: Path, site: Site, package: str, warns: bool) -> None:
    body = f"packages: {{apt: [{package}]}}\n"
    found = said(recipe(tmp_path, body, "nvcr.io/nvidia/pytorch:25.10-py3"), site)
    assert [
        ":6:18: warning: packages.apt[0]: would replace or double" in line for line in found
    ] == [True] * warns, found
    assert said(recipe(tmp_path, body, "docker.io/library/debian:12"), site) == []


def test_a_driver_that_cannot_run_the_base(tmp_path: Path) -> None:
    found = recipe(tmp_path, image="nvcr.io/nvidia/pytorch:25.10-py3")
    assert said(found, make_site(tmp_path, **nodes("H100", "580.95.05"))) == []
    assert (
        said(found, make_site(tmp_path, **nodes("H100", "535.104.05"))) == []
    )  # forward compatible
    (line,) = said(found, make_site(tmp_path, **nodes("RTX 3090", "535.104.05")))
    assert (
        ":5:15: warning: base.image: does not run on node type dgx: driver 535.104.05 is older "
        "than CUDA 13.0.2"
    ) in line


def test_gpus_that_the_base_was_not_compiled_for(tmp_path: Path) -> None:
    (line,) = said(
        recipe(tmp_path, image="nvcr.io/nvidia/pytorch:25.10-py3"),
        make_site(tmp_path, **nodes("V100")),
    )
    assert "has dropped the V100 (sm_70); CUDA 12.9 was the last" in line
    (line,) = said(recipe(tmp_path), make_site(tmp_path, **nodes("B200", "570.124.06")))
    assert "CUDA 12.6.3 does not know the B200" in line or "does not know the B200" in line


def test_nodes_of_another_architecture_are_not_judged(tmp_path: Path) -> None:
    node = {"gpus": {"model": "V100", "count": 1}, "driver": "535.1", "architecture": "aarch64"}
    site = make_site(tmp_path, node_types={"arm": node})
    found = recipe(tmp_path, image="nvcr.io/nvidia/pytorch:25.10-py3")
    assert said(found, site) == [
        ":5:7: warning: base.platforms: is for linux/amd64, and the site's nodes are linux/arm64"
    ], "admin 2: no word"
    both = make_site(
        tmp_path,
        node_types={
            "arm": node,
            "intel": {"gpus": {"model": "H100", "count": 8}, "driver": "580.1"},
        },
    )
    assert said(found, both) == []


def test_virtual_gpus_and_unknown_images_are_not_judged(tmp_path: Path) -> None:
    assert said(recipe(tmp_path), make_site(tmp_path, **nodes("virtual", "470.1"))) == []
    assert (
        said(
            recipe(tmp_path, image="docker.io/library/debian:12"),
            make_site(tmp_path, **nodes("V100", "1.0")),
        )
        == []
    )


def test_a_stack_past_its_dates(tmp_path: Path, site: Site) -> None:
    found = recipe(
        tmp_path, "lifecycle: {deprecate: 2026-01-01, remove: 2027-01-01, successor: new-1}\n"
    )
    assert said(found, site, today=date(2025, 12, 31)) == []
    assert said(found, site) == [
        ":6:24: warning: lifecycle.deprecate: has been deprecated since 2026-01-01; use new-1"
    ]
    assert "was to be removed on 2027-01-01" in said(found, site, today=date(2027, 1, 1))[0]
    unknown = recipe(tmp_path, "lifecycle: {successor: new-2}\n")
    assert said(unknown, site) == [
        ":6:24: warning: lifecycle.successor: there is no stack 'new-2' (did you mean 'new-1'?)"
    ]


def test_every_recipe_of_the_package_is_clean(site: Site) -> None:
    from hpcstack.core import data

    catalog = Catalog([data.find_data_folder("recipes")])
    names = catalog.names()
    recipes = [found for path in catalog.files() for found in catalog.read(path)]
    assert len(recipes) >= 20
    assert [
        w
        for found in recipes
        for w in find_warnings(found, site, None, names, TODAY, needs_lock=False)
    ] == []
