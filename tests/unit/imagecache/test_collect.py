"""What goes from the cache, and what never does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hpcstack.imagecache.collect import DAY_S, choose_expired
from hpcstack.imagecache.layout import CachedImage

NOW = 1_800_000_000.0
ENTRIES = st.dictionaries(
    st.text("0123456789abcdef", min_size=4, max_size=4),
    st.tuples(st.integers(1, 1000), st.floats(0, 100)),  # size, days unused
    max_size=12,
)


def entry(size: int) -> CachedImage:
    return CachedImage(
        "nvcr.io/a/b@sha256:0", "sha256:" + "0" * 64, "linux/amd64", size, public=True
    )


@given(
    drawn=ENTRIES, keep=st.integers(1, 60), bound=st.integers(0, 5000), coming=st.integers(0, 500)
)
def test_the_bounds_hold_and_what_was_used_within_a_day_stays(
    drawn: dict[str, tuple[int, float]], keep: int, bound: int, coming: int
) -> None:
    entries = {key: (entry(size), NOW - days * DAY_S) for key, (size, days) in drawn.items()}
    going = {one.key for one in choose_expired(entries, NOW, keep, bound, coming)}
    for key, (_, days) in drawn.items():
        if days < 1:
            assert key not in going
        if days > keep + 0.001:
            assert key in going
    left = [key for key in drawn if key not in going]
    if bound and sum(drawn[key][0] for key in left) + coming > bound:
        assert all(drawn[key][1] <= 1.001 for key in left), (
            "only what a job may still run from is more than the bound"
        )


def test_the_longest_unused_goes_first_and_no_more_than_must() -> None:
    entries = {
        name: (entry(100), NOW - days * DAY_S)
        for name, days in (("a", 3), ("b", 9), ("c", 5), ("d", 0.5))
    }
    assert [one.key for one in choose_expired(entries, NOW, 30, 250)] == ["b", "c"]
    assert [one.key for one in choose_expired(entries, NOW, 30, 400)] == []
    assert [one.key for one in choose_expired(entries, NOW, 30, 400, coming=1)] == ["b"]
    assert "unused for 9 days" in choose_expired(entries, NOW, 7, 0)[0].why
