from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from servers.contiguous.stopping import StopMatcher


def feed(stops: list[str], parts: list[str]) -> tuple[list[str], str | None]:
    matcher = StopMatcher(stops)
    shown = []
    for part in parts:
        text, stop = matcher.add(part)
        shown.append(text)
        if stop is not None:
            return shown, stop
    return [*shown, matcher.flush()], None


def test_without_stop_strings_nothing_is_held_back() -> None:
    assert feed([], ["a", "\n", "b"]) == (["a", "\n", "b", ""], None)


def test_only_a_possible_beginning_is_held_back() -> None:
    assert feed(["END"], ["x", "E", "N", "x", "y"]) == (["x", "", "", "ENx", "y", ""], None)


def test_found_across_parts_and_cut_before() -> None:
    assert feed(["END"], ["ab", "cE", "NDz"]) == (["ab", "c", ""], "END")


def test_the_first_in_the_text_wins() -> None:
    assert feed(["zz", "b"], ["abczz"]) == (["a"], "b")


def test_held_back_text_comes_out_at_the_end() -> None:
    assert feed(["END"], ["xEN"]) == (["x", "EN"], None)


def test_overlapping_beginnings() -> None:
    """'aab' in 'aaab': after 'aaa' the last two may still begin it."""
    assert feed(["aab"], ["a", "a", "a", "b"]) == (["", "", "a", ""], "aab")


@given(st.lists(st.text("ab", max_size=3), max_size=12), st.text("ab", min_size=1, max_size=4))
def test_same_text_as_searching_the_whole(parts: list[str], stop: str) -> None:
    whole = "".join(parts)
    shown, found = feed([stop], parts)
    at = whole.find(stop)
    assert (found is not None) == (at >= 0)
    assert "".join(shown) == (whole if at < 0 else whole[:at])
