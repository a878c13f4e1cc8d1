"""What takes of unknown outcome may hold is looked for at once, then ever less often, and not for ever."""

from __future__ import annotations

from tubes.testing import FakeClock
from tubes.unknown import LOOKS_FOR, SOONEST, Taken, UnknownTakes


def test_a_take_is_looked_for_at_once_then_after_twice_as_long_each_time(clock: FakeClock) -> None:
    takes = UnknownTakes(clock.monotonic)
    takes.add("me", 5)
    looks: list[float] = []
    while takes:
        due = takes.due()
        if due:
            assert due == {("me", 5)}
            looks.append(clock.monotonic())
            takes.looked_for(due)
        clock.advance(SOONEST / 2)
    assert looks == [0, 1, 2, 4, 8, 16, 32, 64, 128]
    assert looks[-2] < LOOKS_FOR <= looks[-1]
    assert takes.due() == set()


def test_a_new_one_brings_the_next_look_forward_for_all(clock: FakeClock) -> None:
    takes = UnknownTakes(clock.monotonic)
    takes.add("me", 5)
    for _ in range(4):
        takes.looked_for(takes.due())
        clock.advance(SOONEST)
    takes.looked_for(takes.due())
    assert takes.due() == set()
    takes.add("me", 6)
    assert takes.due() == {("me", 5), ("me", 6)}


def test_one_that_comes_during_a_look_is_looked_for_at_once(clock: FakeClock) -> None:
    takes = UnknownTakes(clock.monotonic)
    takes.add("me", 5)
    due = takes.due()
    takes.add("me", 6)
    takes.looked_for(due)
    assert takes.due() == {("me", 5), ("me", 6)}
    due = takes.due()
    takes.add("me", 7)
    clock.advance(LOOKS_FOR)  # the server hung: a take may be old then without any look for it
    takes.looked_for(due)
    assert takes.due() == {("me", 7)}


def test_an_old_one_is_forgotten_and_a_new_one_is_not(clock: FakeClock) -> None:
    takes = UnknownTakes(clock.monotonic)
    takes.add("me", 5)
    clock.advance(LOOKS_FOR)
    takes.add("me", 6)
    takes.looked_for(takes.due())
    clock.advance(SOONEST)
    assert takes.due() == {("me", 6)}


def test_one_that_comes_in_the_middle_of_a_note_is_looked_for_at_once(clock: FakeClock) -> None:
    """If threads run truly in parallel, another may add one between any two steps."""
    takes, numbers = UnknownTakes(clock.monotonic), iter(range(100))

    class Some(set[Taken]):
        def __contains__(self, taken: object) -> bool:
            takes.add("other", next(numbers))
            return super().__contains__(taken)

    takes.add("me", 5)
    takes.add("me", 6)
    takes.looked_for(Some([*takes.due(), *(("gone", number) for number in range(100))]))
    assert takes.due() > {("me", 5), ("me", 6)}
