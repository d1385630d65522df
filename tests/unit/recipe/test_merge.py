"""extends, matrix and policy: what is merged, what is replaced, and where each value came from."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcstack.core.errors import InputError, ProblemsError
from hpcstack.core.yaml import Document, parse_yaml
from hpcstack.recipe.catalog import Catalog
from hpcstack.recipe.merge import Policy, expand_matrix, merge_documents, resolve_replacements

HEAD = 'apiVersion: hpcstack/v1\nsummary: s\nbase: {image: "nvcr.io/nvidia/pytorch:24.11-py3"}\n'


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_mappings_merge_lists_append_and_the_rest_is_replaced() -> None:
    under = parse_yaml("a: {x: 1, y: 2}\nb: [p]\nc: old\nd: {gone: 1, stays: 2}\n", "under")
    over = parse_yaml("a: {y: 3}\nb: [q]\nc: new\nd: {gone: }\n", "over")
    merged = merge_documents(under, over)
    assert merged.value == {
        "a": {"x": "1", "y": "3"},
        "b": ["p", "q"],
        "c": "new",
        "d": {"stays": "2"},
    }
    assert merged.mark(("a", "x")) == ("under", 1, 8)
    assert merged.mark(("a", "y")) == ("over", 1, 8)
    assert merged.mark(("b", 0)) == ("under", 2, 5)
    assert merged.mark(("b", 1)) == ("over", 2, 5)


def test_a_list_is_replaced_where_it_says_so() -> None:
    merged = merge_documents(
        parse_yaml("b: [p, q]\n", "under"),
        parse_yaml("b: {replace: [r]}\nc: {replace: [s]}\n", "over"),
    )
    assert resolve_replacements(merged).value == {"b": ["r"], "c": ["s"]}
    assert resolve_replacements(merged).mark(("b", 0)) == ("over", 1, 15)
    assert resolve_replacements(
        merge_documents(merged, parse_yaml("b: [t]\nc: [u]\n", "third"))
    ).value == {
        "b": ["r", "t"],
        "c": ["s", "u"],
    }


def test_a_replaced_list_stays_so_through_extends_and_matrix(tmp_path: Path) -> None:
    write(tmp_path, "_root", "packages: {apt: [a1], pip: [p1]}\ntests: [node, ddp]\n")
    text = HEAD + (
        "extends: _root\nname: demo\ntests: {replace: [fabric]}\nmatrix:\n  version:\n    '1': {}\n"
    )
    text += "    '2': {packages: {apt: {replace: [b1]}, pip: [p2]}}\n"
    write(tmp_path, "demo", text)
    catalog = Catalog([tmp_path])
    one, two = catalog.find("demo-1").stack, catalog.find("demo-2").stack
    assert (one.tests, one.packages.apt, one.packages.pip) == (("fabric",), ("a1",), ("p1",))
    assert (two.tests, two.packages.apt, two.packages.pip) == (("fabric",), ("b1",), ("p1", "p2"))
    write(tmp_path, "child-1", 'extends: demo-2\nname: child\nversion: "1"\ntests: [node]\n')
    assert catalog.find("child-1").stack.tests == ("fabric", "node")


def test_a_chain_of_templates_and_stacks(tmp_path: Path) -> None:
    write(
        tmp_path,
        "_root",
        "apiVersion: hpcstack/v1\npackages: {apt: [a1]}\nenvironment: {A: root, B: root}\n",
    )
    write(
        tmp_path, "mid-1", HEAD + 'extends: _root\nname: mid\nversion: "1"\npackages: {apt: [b1]}\n'
    )
    path = write(
        tmp_path, "leaf-2", 'extends: mid-1\nname: leaf\nversion: "2"\nenvironment: {B: leaf}\n'
    )
    recipe = Catalog([tmp_path]).find("leaf-2")
    assert recipe.stack.packages.apt == ("a1", "b1")
    assert {name: setting.set for name, setting in recipe.stack.environment.items()} == {
        "A": "root",
        "B": "leaf",
    }
    origins = recipe.origins()
    assert origins["packages.apt[0]"] == f"{tmp_path}/_root.yaml:2"
    assert origins["packages.apt[1]"] == f"{tmp_path}/mid-1.yaml:7"
    assert origins["environment.B"] == f"{path}:4"
    assert origins["summary"] == f"{tmp_path}/mid-1.yaml:2"


def test_a_problem_of_a_template_is_told_at_its_own_line(tmp_path: Path) -> None:
    write(tmp_path, "_root", 'apiVersion: hpcstack/v1\npackages: {apt: ["a b"]}\n')
    write(tmp_path, "leaf-2", HEAD + 'extends: _root\nname: leaf\nversion: "2"\n')
    with pytest.raises(ProblemsError) as caught:
        Catalog([tmp_path]).find("leaf-2")
    assert str(caught.value.problems[0]).startswith(
        f"{tmp_path}/_root.yaml:2:18: packages.apt[0]: not an apt package"
    )


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_circle_is_refused(tmp_path: Path, length: int) -> None:
    for n in range(length):
        write(
            tmp_path,
            f"s{n}-1",
            HEAD + f'extends: s{(n + 1) % length}-1\nname: s{n}\nversion: "1"\n',
        )
    with pytest.raises(ProblemsError, match="cannot extend itself"):
        Catalog([tmp_path]).find("s0-1")


def test_a_sites_recipe_may_extend_the_one_it_hides(tmp_path: Path) -> None:
    write(
        tmp_path / "package", "demo-1", HEAD + 'name: demo\nversion: "1"\npackages: {apt: [a1]}\n'
    )
    write(
        tmp_path / "site",
        "demo-1",
        'extends: demo-1\nname: demo\nversion: "1"\npackages: {apt: [site1]}\n',
    )
    recipe = Catalog([tmp_path / "site", tmp_path / "package"]).find("demo-1")
    assert recipe.stack.packages.apt == ("a1", "site1")


def test_versions_by_variants_with_exclusions(tmp_path: Path) -> None:
    text = (
        'apiVersion: hpcstack/v1\nname: demo\nsummary: "${stack.name} ${stack.version} '
        '${stack.variant}"\n'
    )
    text += (
        'base: {image: "nvcr.io/nvidia/pytorch:${stack.version}-py3"}\nmatrix:\n  version: '
        '["24.11", "25.10"]\n'
    )
    text += (
        "  variant:\n    '': {}\n    vision:\n      packages: {pip: [timm]}\n      summary: "
        "seeing\n"
    )
    text += '  exclude: [{version: "24.11", variant: vision}]\n'
    write(tmp_path, "demo", text)
    catalog = Catalog([tmp_path])
    assert list(catalog.names()) == ["demo-24.11", "demo-25.10", "demo-25.10-vision"]
    vision = catalog.find("demo-25.10-vision").stack
    assert (vision.packages.pip, vision.summary, vision.base.tag) == (
        ("timm",),
        "seeing",
        "25.10-py3",
    )
    assert vision.release_version == "25.10-vision"
    assert catalog.find("demo-24.11").stack.summary == "demo 24.11 "
    origin = catalog.find("demo-25.10-vision").origins()
    assert origin["version"].endswith("demo.yaml:6")
    assert origin["packages.pip[0]"].endswith("demo.yaml:10")


def test_a_stack_of_a_matrix_can_be_extended(tmp_path: Path) -> None:
    write(
        tmp_path,
        "demo",
        HEAD + 'name: demo\nmatrix: {version: ["1", "2"]}\nenvironment: {V: "${stack.version}"}\n',
    )
    write(tmp_path, "child-9", 'extends: demo-2\nname: child\nversion: "9"\n')
    setting = Catalog([tmp_path]).find("child-9").stack.environment["V"]
    assert setting.set == "2"


def test_a_file_of_many_stacks_must_be_named_by_one(tmp_path: Path) -> None:
    path = write(tmp_path, "demo", HEAD + 'name: demo\nmatrix: {version: ["1", "2"]}\n')
    with pytest.raises(InputError, match="contains 2 stacks: demo-1, demo-2"):
        Catalog([tmp_path]).find(str(path))


def test_a_policy_lies_under_and_over_every_recipe(tmp_path: Path) -> None:
    write(
        tmp_path, "demo-1", HEAD + 'name: demo\nversion: "1"\nenvironment: {A: recipe, B: recipe}\n'
    )
    policy = Policy(
        parse_yaml("environment: {A: default, C: default}\n", "site.yaml"),
        parse_yaml(
            "environment: {B: forced}\nlabels: {org.example.site: here}\n",
            "/etc/hpcstack/site.yaml",
        ),
    )
    recipe = Catalog([tmp_path], policy).find("demo-1")
    values = {name: setting.set for name, setting in recipe.stack.environment.items()}
    assert values == {"A": "recipe", "B": "forced", "C": "default"}
    assert recipe.origins()["environment.B"] == "/etc/hpcstack/site.yaml:1"


def test_files_are_read_beside_the_recipe_that_names_them(tmp_path: Path) -> None:
    (tmp_path / "share").mkdir()
    (tmp_path / "share/x.conf").write_text("a = {{ b }}\n$c\n")
    write(tmp_path / "share", "_root", "files: [{path: /etc/x.conf, source: x.conf}]\n")
    write(tmp_path / "mine", "demo-1", HEAD + 'extends: _root\nname: demo\nversion: "1"\n')
    first = Catalog([tmp_path / "mine", tmp_path / "share"]).find("demo-1").stack
    assert first.files[0].content == "a = {{ b }}\n$c\n"
    (tmp_path / "share/x.conf").write_text("other\n")
    second = Catalog([tmp_path / "mine", tmp_path / "share"]).find("demo-1").stack
    assert first.checksum() != second.checksum()  # the lock of the first is stale


def test_a_symlink_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r/x").symlink_to("/etc/passwd")
    write(
        tmp_path / "r",
        "demo-1",
        HEAD + 'name: demo\nversion: "1"\nfiles: [{path: /etc/x, source: x}]\n',
    )
    with pytest.raises(ProblemsError, match="leads out of its folder"):
        Catalog([tmp_path / "r"]).find("demo-1")


VALUES = st.recursive(
    st.text("abc", max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text("xyz", min_size=1, max_size=2), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(st.text("xyz", min_size=1, max_size=2), VALUES, max_size=4),
    st.dictionaries(st.text("xyz", min_size=1, max_size=2), VALUES, max_size=4),
)
def test_merging_with_nothing_changes_nothing(
    low: dict[str, object], high: dict[str, object]
) -> None:
    empty = Document("e", {})
    under, over = Document("u", low), Document("o", high)
    assert merge_documents(under, empty).value == low
    assert merge_documents(empty, over).value == high
    merged = merge_documents(under, over).value
    assert set(merged) == {*low, *high}
    assert merge_documents(merge_documents(under, over), empty).value == merged


@given(st.text(max_size=30))
def test_only_stack_words_are_replaced(text: str) -> None:
    document = Document("f", {"name": "n", "version": "v", "summary": text})
    if "${stack." not in text:
        assert expand_matrix(document)[0].value["summary"] == text


def test_a_policy_fills_names_and_drops_what_it_forbids(tmp_path: Path) -> None:
    write(tmp_path, "demo-1", HEAD + 'name: demo\nversion: "1"\nenvironment: {A: x}\n')
    write(tmp_path, "demo-2", HEAD + 'name: demo\nversion: "2"\n')
    policy = Policy(
        None, parse_yaml('environment: {A: , S: "${stack.version}", P: {prepend: [b]}}\n', "s")
    )
    catalog = Catalog([tmp_path], policy)
    for version in ("1", "2"):
        environment = catalog.find(f"demo-{version}").stack.environment
        assert set(environment) == {"S", "P"}
        assert environment["S"].set == version


def test_a_value_of_its_own_and_parts_replace_each_other(tmp_path: Path) -> None:
    write(tmp_path, "_root", "environment: {A: whole, B: {prepend: [p]}}\n")
    write(
        tmp_path,
        "demo-1",
        HEAD
        + 'extends: _root\nname: demo\nversion: "1"\nenvironment: {A: {append: [q]}, B: own}\n',
    )
    environment = Catalog([tmp_path]).find("demo-1").stack.environment
    assert (environment["A"].set, environment["A"].append, environment["B"].set) == (
        None,
        ("q",),
        "own",
    )


@pytest.mark.parametrize("name", ["_x/../../other", "x" * 5000, "../a", "a b"])
def test_extends_names_a_stack_and_no_path(tmp_path: Path, name: str) -> None:
    write(tmp_path, "demo-1", HEAD + f'extends: "{name}"\nname: demo\nversion: "1"\n')
    with pytest.raises(ProblemsError, match="name one stack or template"):
        Catalog([tmp_path]).find("demo-1")


def test_a_matrix_has_a_bound_and_names_are_unique(tmp_path: Path) -> None:
    many = ", ".join(f'"{n}"' for n in range(1001))
    path = write(tmp_path, "demo", HEAD + f"name: demo\nmatrix: {{version: [{many}]}}\n")
    with pytest.raises(ProblemsError, match="1001 stacks of one file; the limit is 1000"):
        Catalog([tmp_path]).read(path)
    path = write(
        tmp_path,
        "twice",
        HEAD + 'name: twice\nmatrix: {version: ["1-x", "1"], variant: ["", "x"]}\n',
    )
    with pytest.raises(ProblemsError, match="two stacks of this file have the name twice-1-x"):
        Catalog([tmp_path]).read(path)


def test_what_is_no_ordinary_file_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dos").write_bytes(b"a\r\n")
    (tmp_path / "big").write_bytes(b"x" * ((1 << 18) + 1))
    for source, says in (
        ("pipe", "not an ordinary file"),
        ("loop", "leads to itself"),
        ("dos", "Windows line ends"),
        ("big", "larger than"),
    ):
        path = write(
            tmp_path,
            "demo-1",
            HEAD + f'name: demo\nversion: "1"\nfiles: [{{path: /etc/x, source: {source}}}]\n',
        )
        with pytest.raises(ProblemsError, match=says):
            Catalog([tmp_path]).read(path)
    os.mkfifo(tmp_path / "fifo-1.yaml")
    (tmp_path / "zero-1.yaml").symlink_to("/dev/zero")
    (tmp_path / "folder-1.yaml").mkdir()
    for name, says in (("fifo-1", "not an ordinary file"), ("zero-1", "leads out of its folder")):
        with pytest.raises(ProblemsError, match=says):
            Catalog([tmp_path]).find(name)
    assert tmp_path / "folder-1.yaml" not in Catalog([tmp_path]).files()


def test_a_template_of_another_format_is_not_read_as_ours(tmp_path: Path) -> None:
    write(tmp_path, "_root", "apiVersion: hpcstack/v2\n")
    write(tmp_path, "demo-1", HEAD + 'extends: _root\nname: demo\nversion: "1"\n')
    with pytest.raises(
        ProblemsError, match="_root.yaml:1:13: apiVersion: input should be 'hpcstack/v1'"
    ):
        Catalog([tmp_path]).find("demo-1")


def test_a_folder_of_recipes_named_with_dots_has_its_sources(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "r/x").write_text("text\n")
    write(
        tmp_path / "r",
        "demo-1",
        HEAD + 'name: demo\nversion: "1"\nfiles: [{path: /etc/x, source: x}]\n',
    )
    found = Catalog([tmp_path / "bin/../r"]).find("demo-1")
    assert found.stack.files[0].content == "text\n"
