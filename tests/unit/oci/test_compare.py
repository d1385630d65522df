"""Two images are compared name by name, and nothing is left out in silence."""

from __future__ import annotations

import pytest

from hpcstack.oci.compare import (
    LEFT_OUT,
    PACKAGES,
    Held,
    Parity,
    compare_contents,
    find_differences,
    is_key_library,
    left_out,
)

FILE = Held("file", 0o644, "a" * 64)
APT = PACKAGES["apt packages"]
COMMANDS = "etc/environment"


def compare(one: dict[str, Held], other: dict[str, Held]) -> Parity:
    return compare_contents(one, other, ({}, {}))


def test_equal_images_differ_in_nothing() -> None:
    contents = {"opt/a": FILE, "opt/b": Held("link", 0o777, "a"), "opt": Held("dir", 0o755)}
    found = compare(contents, dict(contents))
    assert found.differ == []
    assert found.compared["files"] == 2


@pytest.mark.parametrize(
    ("other", "how"),
    [
        (None, "only in the first"),
        (Held("file", 0o644, "b" * 64), "other bytes"),
        (Held("file", 0o755, "a" * 64), "mode 644 and 755"),
        (Held("link", 0o777, "b"), "file and link"),
    ],
)
def test_each_difference_is_named_with_its_file(other: Held | None, how: str) -> None:
    found = compare({"opt/a": FILE}, {"opt/a": other} if other else {})
    assert found.differ == [f"opt/a: {how}"]


def test_a_link_that_points_elsewhere_is_told() -> None:
    one, other = Held("link", 0o777, "a"), Held("link", 0o777, "b")
    assert compare({"opt/l": one}, {"opt/l": other}).differ == ["opt/l: points to a and b"]


def test_packages_of_one_image_alone_are_named() -> None:
    texts = ({APT: "curl=1\nwget=2\n"}, {APT: "curl=1\njq=3\n"})
    found = compare_contents({}, {}, texts)
    assert found.differ == [
        "apt packages: wget=2 only in the first",
        "apt packages: jq=3 only in the second",
    ]
    assert found.compared["apt packages"] == 3


def test_comments_of_the_environment_do_not_count() -> None:
    same = ({COMMANDS: "# by one engine\nA=1\n"}, {COMMANDS: "\nA=1\n"})
    assert compare_contents({}, {}, same).differ == []
    other = ({COMMANDS: "A=1\n"}, {COMMANDS: "A=2\n"})
    assert len(compare_contents({}, {}, other).differ) == 2


@pytest.mark.parametrize("name", ["etc/hosts", "tmp/x/y", ".singularity.d/labels.json"])
def test_what_is_left_out_has_a_reason(name: str) -> None:
    assert left_out(name)
    assert compare({name: FILE}, {}).differ == []
    assert all(compare({}, {}).left_out.values())


def test_what_is_ours_is_not_left_out() -> None:
    for name in (*PACKAGES.values(), "opt/hpcstack/stack.json", "usr/lib/libc.so.6", "etc/passwd"):
        assert not left_out(name), (name, LEFT_OUT)


def test_nvidias_libraries_are_counted() -> None:
    assert is_key_library("usr/lib/x86_64-linux-gnu/libnccl.so.2.23.4")
    assert not is_key_library("usr/lib/x86_64-linux-gnu/libz.so.1")
    found = compare({"usr/lib/libnccl.so.2": FILE}, {"usr/lib/libnccl.so.2": FILE})
    assert found.compared["key libraries"] == 1


def test_builds_of_the_same_bytes_are_compared_more_strictly() -> None:
    """Where one engine built twice, an empty folder and its mode count, and so does what engines
    leave behind.
    """
    one = {"opt": Held("dir", 0o755), "tmp/x": FILE}
    assert find_differences(one, one) == []
    assert find_differences(one, {"opt": Held("dir", 0o700), "tmp/x": FILE}) == [
        "opt: mode 755 and 700"
    ]
    assert find_differences(one, {}) == ["opt: only in the first", "tmp/x: only in the first"]
