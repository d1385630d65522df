"""How layers become one tree: one pass, newest first, and the plan give the same image as applying
layers in order.
"""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hpcstack.oci.flatten import (
    ClimbsOut,
    NeedsTwoPasses,
    Newest,
    TreeEntry,
    clean_name,
    parse_whiteout,
    plan_layers,
)

Layer = list[TreeEntry]
Tree = dict[str, tuple[str, int, int]]


def one_pass(layers: list[Layer]) -> Tree:
    """{path: (kind, layer from the bottom, number in it)} by Newest; links as the file they name."""
    newest, out = Newest(), {}
    for number in range(len(layers) - 1, -1, -1):
        newest.layer()
        for place, entry in enumerate(layers[number]):
            if newest.takes(entry):
                out[entry.path] = (entry.kind, number, place)
    for path, target in newest.links:
        out[path] = out[target]
    return out


def planned(layers: list[Layer]) -> Tree:
    names, _ = plan_layers(layers)
    return {
        path: (layers[number][place].kind, number, place)
        for (number, place), paths in names.items()
        for path in paths
    }


def file(path: str) -> TreeEntry:
    return TreeEntry(path, "file")


def folder(path: str) -> TreeEntry:
    return TreeEntry(path, "dir")


@pytest.mark.parametrize(
    ("layers", "there"),
    [
        ([[file("a"), file("b")], [file(".wh.a")]], {"b"}),
        ([[file("a")], [file(".wh.a"), file("a")]], {"a"}),
        ([[folder("d"), file("d/x")], [file("d/.wh..wh..opq"), file("d/y")]], {"d", "d/y"}),
        ([[folder("d"), file("d/x")], [file("d/y"), file("d/.wh..wh..opq")]], {"d", "d/y"}),
        ([[folder("d"), file("d/x")], [file("d")]], {"d"}),
        ([[file("d")], [folder("d"), file("d/x")]], {"d", "d/x"}),
        ([[folder("d"), file("d/x")], [file(".wh.d")], [file("d/y")]], {"d/y"}),
        ([[folder("d"), folder("d/e"), file("d/e/x")], [file("d/.wh.e")]], {"d"}),
        ([[file("a"), TreeEntry("b", "hard", "a")]], {"a", "b"}),
        ([[TreeEntry("n", "device")], [file("x")]], {"x"}),
        ([[file("n")], [TreeEntry("n", "device")]], set()),
        ([[file("a")], [file(".wh.")], [file(".wh..wh.plnk")]], {"a"}),
        ([[file("a"), file("d/b")], [file(".wh..wh..opq"), file("c")]], {"c"}),
    ],
)  # fmt: skip
def test_layers_in_one_pass_and_by_plan(layers: list[Layer], there: set[str]) -> None:
    assert set(one_pass(layers)) == there
    assert planned(layers) == one_pass(layers)


@pytest.mark.parametrize(
    ("layers", "there"),
    [
        ([[file("a"), file("a")]], {"a": (0, 1)}),  # the last of two counts
        # the old file lives on as b
        ([[file("a"), TreeEntry("b", "hard", "a")], [file("a")]], {"a": (1, 0), "b": (0, 0)}),
        # a link to a lower layer's file
        ([[file("a")], [TreeEntry("b", "hard", "a")]], {"a": (0, 0), "b": (0, 0)}),
        # through a link
        ([[folder("usr"), TreeEntry("lib", "link", "usr")], [file("lib/x")]], {"usr/x": (1, 0)}),
        ([[file("d")], [file("d/x")]], {"d/x": (1, 0)}),  # a folder nobody names, where a file was
        ([[TreeEntry("l", "link", "/etc"), file("l/x")]], {"etc/x": (0, 1)}),
        ([[folder("b"), TreeEntry("a", "link", "b")], [file("a/x")], [file(".wh.a")]], {"b/x": (1, 0)}),
        ([[folder("b"), TreeEntry("a", "link", "b")], [file("a/x")], [folder("a")]], {"b/x": (1, 0), "a": (2, 0)}),
        (
            [[folder("usr"), file("usr/x"), TreeEntry("lib", "link", "usr")], [file("lib/x")], [folder("lib"), file("lib/x")]],
            {"usr/x": (1, 0), "lib/x": (2, 1)},
        ),
        ([[file("d/x"), TreeEntry("d", "link", "e"), file("d/y")], [file("d/.wh.x")]], {"e/y": (0, 2)}),
    ],
)  # fmt: skip
def test_what_one_pass_cannot_decide_is_planned(
    layers: list[Layer], there: dict[str, tuple[int, int]]
) -> None:
    with pytest.raises(NeedsTwoPasses):
        one_pass(layers)
    found = planned(layers)
    assert {path: found[path][1:] for path in there} == there


def test_what_is_removed_below_a_link_is_removed_where_it_leads() -> None:
    layers = [[folder("usr"), file("usr/x"), TreeEntry("lib", "link", "usr")], [file("lib/.wh.x")]]
    with pytest.raises(NeedsTwoPasses):
        one_pass(layers)
    assert set(planned(layers)) == {"usr", "lib"}
    assert set(planned([*layers[:1], [file("nowhere/.wh.x")]])) == {"usr", "usr/x", "lib"}


@pytest.mark.parametrize(
    "layers",
    [
        [[TreeEntry("l", "link", "../../etc"), file("l/x")]],
        [[TreeEntry("l", "link", "l"), file("l/x")]],
        [[TreeEntry("b", "hard", "nowhere")]],
    ],
)
def test_what_leads_out_or_nowhere_is_refused(layers: list[Layer]) -> None:
    with pytest.raises(ClimbsOut):
        plan_layers(layers)


@pytest.mark.parametrize("name", ["../x", "a/../../x", "a/..", "/../x"])
def test_names_that_climb_out(name: str) -> None:
    with pytest.raises(ClimbsOut):
        clean_name(name)


@pytest.mark.parametrize(
    ("name", "path"),
    [("./a/b", "a/b"), ("/etc/x", "etc/x"), ("a//b/", "a/b"), (".", ""), ("./", "")],
)
def test_names_are_cleaned(name: str, path: str) -> None:
    assert clean_name(name) == path


PATHS = st.sampled_from(["a", "b", "a/x", "a/y", "a/x/z", "b/x", "c"])


@st.composite
def entries(draw: st.DrawFn) -> TreeEntry:
    path = draw(PATHS)
    kind = draw(
        st.sampled_from(["file", "file", "dir", "dir", "hard", "link", "gone", "opaque", "device"])
    )
    head, _, name = path.rpartition("/")
    if kind == "gone":
        return file(f"{head}/.wh.{name}".lstrip("/"))
    if kind == "opaque":
        return file(f"{path}/.wh..wh..opq")
    return TreeEntry(path, kind, draw(PATHS) if kind in ("hard", "link") else "")


@settings(max_examples=1000, deadline=None)
@given(st.lists(st.lists(entries(), max_size=7), max_size=4))
@example([[folder("a"), file("a/x")], [TreeEntry("a", "link", "b")], [folder("b"), file("a/y")]])
@example([[file("a/x")], [file(".wh.a"), folder("a")], [file("a/y")]])
@example([[TreeEntry("a/x", "link", "a"), file("a/x/z")], [file("a/x")]])
@example([[file("a/x")], [file("a")], [folder("a")]])
@example([[folder("a"), file("a/x"), file("a")], [folder("a")]])
@example(
    [[folder("b"), file("a/x"), TreeEntry("b", "link", "a")], [file("b/.wh..wh..opq")], [file("b")]]
)
def test_one_pass_agrees_with_the_plan_where_it_is_sure(layers: list[Layer]) -> None:
    try:
        first = one_pass(layers)
    except NeedsTwoPasses:
        return
    try:
        second = planned(layers)
    except ClimbsOut:
        return  # a link to nowhere is seen by the plan alone
    assert first == second


def test_whiteouts() -> None:
    assert [parse_whiteout(path) for path in ("a", "a/.wh.b", ".wh.b", "a/.wh..wh..opq", ".wh..wh.aufs", ".wh.")] == [
        None, "a/b", "b", "a/", "", "",
    ]  # fmt: skip
