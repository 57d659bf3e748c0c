"""Whose turn it is: never over a card's memory, nobody waits for ever, nobody for each other."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_cudafork.gpus import packing
from pytest_cudafork.gpus.packing import MOST_OVERTAKEN, PARTS, Card, Request, Turn, turn

GIB = 1 << 30
SIZE = 80 * GIB
CARDS = (Card("a", SIZE), Card("b", SIZE), Card("c", SIZE))
NAMES = tuple(card.name for card in CARDS)


def wish(memory: int | None = None, n: int = 1, parts: int = PARTS, **about: object) -> Request:
    """Return what somebody wants of all cards; the memory in GiB."""
    size = None if memory is None else memory * GIB
    return Request(n, NAMES, parts, size)._replace(**about)  # type: ignore[arg-type]


def ask(held: dict[str, list[int]], *queue: Request, mine: int = -1) -> Turn:
    """Ask for the last of the queue; what is held is in GiB."""
    in_bytes = {name: [size * GIB for size in sizes] for name, sizes in held.items()}
    return turn(CARDS, in_bytes, queue, mine % len(queue))


def test_tests_share_a_card_as_far_as_its_memory_goes() -> None:
    only_a = {"b": [80], "c": [80]}
    assert ask({"a": [50], **only_a}, wish(30)).cards == ("a",)
    assert ask({"a": [50], **only_a}, wish(31)).cards == ()
    assert ask({"a": [50], **only_a}, wish()).cards == ()


def test_cards_with_few_holders_come_first() -> None:
    assert ask({"a": [5]}, wish(10)).cards == ("b",)
    assert ask({"a": [5], "b": [1, 1], "c": [1]}, wish(10)).cards == ("c",)
    assert ask({"a": [5], "b": [1, 1], "c": [1]}, wish(10, n=2)).cards == ("a", "c")
    assert ask({}, wish()).cards == ("a",), "alone: the first that is free"


def test_memory_of_strangers_is_left_to_them() -> None:
    cards = (Card("a", SIZE, others=50 * GIB), Card("b", SIZE, others=79 * GIB))
    queue = [Request(1, ("a", "b"), memory=40 * GIB)]
    assert turn(cards, {}, queue, 0) == Turn()
    assert turn(cards, {}, [queue[0]._replace(memory=30 * GIB)], 0).cards == ("a",)
    alone = turn(cards, {}, [Request(2, ("a", "b"))], 0)
    assert alone.cards == ("a", "b"), "who has a card alone is not asked how much it needs"


def test_a_card_of_unknown_memory_is_had_alone_by_who_needs_memory() -> None:
    card = Card("a")
    assert turn([card], {}, [Request(1, ("a",), memory=GIB)], 0).cards == ("a",)
    assert turn([card], {"a": [1]}, [Request(1, ("a",), memory=GIB)], 0).cards == ()
    assert turn([card], {"a": [1] * 7}, [Request(1, ("a",), parts=1)], 0).cards == ("a",)
    assert turn([card], {"a": [1] * 8}, [Request(1, ("a",), parts=1)], 0).cards == ()


def test_who_waits_for_much_is_overtaken_a_few_times_and_then_no_more() -> None:
    held = {"a": [60], "b": [60], "c": [60]}
    big = wish(70)
    found = ask(held, big, wish(20))
    assert (found.cards, found.overtakes) == (("a",), (0,))
    due = big._replace(overtaken=MOST_OVERTAKEN)
    later = ask(held, due, wish(20))
    assert later.cards == ("b",), "room is kept on one card only"
    full = {"a": [60], "b": [80], "c": [80]}
    assert ask(full, due, wish(20)) == Turn(behind=True)


def test_who_wants_cards_alone_is_not_overtaken() -> None:
    assert ask({"a": [1], "b": [1], "c": [1]}, wish(n=3), wish(1)) == Turn(behind=True)
    assert ask({"a": [1]}, wish(n=3), wish()) == Turn(behind=True)


def test_room_is_kept_where_it_was_kept_before() -> None:
    held = {name: [size * GIB for size in sizes] for name, sizes in {"a": [60], "b": [50]}.items()}
    due = Request(1, ("a", "b"), memory=70 * GIB, overtaken=MOST_OVERTAKEN)
    assert packing.room_to_keep(CARDS, held, [due], 0) == ("b",)
    kept = due._replace(kept=("a",))
    assert packing.room_to_keep(CARDS, held, [kept], 0) == ("a",)
    strangers = [CARDS[0]._replace(others=SIZE), CARDS[1]]
    assert packing.room_to_keep(strangers, held, [kept], 0) == ("b",), "not where it never fits"
    assert packing.room_to_keep(CARDS, held, [due._replace(overtaken=0)], 0) == ()
    ahead = [due, due]
    assert packing.room_to_keep(CARDS, held, ahead, 1) == ("a",), "the other has chosen"


def test_cards_that_this_session_does_not_know_are_nobodys_trouble() -> None:
    stranger = Request(1, ("z",))
    assert ask({}, stranger, wish()).cards == ("a",)


@pytest.mark.parametrize(
    ("used", "claimed", "noted", "others"),
    [
        (5, 0, 0, 5),  # nobody else: all that is in use
        (50, 60, 0, 0),
        (70, 60, 0, 10),  # more in use than tests may have
        (50, 60, 20, 20),  # what was seen when the card was empty
        (15, 60, 20, 15),  # some of it is gone
        (0, 60, 20, 0),
    ],
)
def test_what_strangers_hold_lies_between_what_can_be_told(
    used: int, claimed: int, noted: int, others: int
) -> None:
    assert packing.held_by_others(used, claimed, noted) == others


@dataclass
class Machine:
    """Cards, those who hold and those who wait; all that happens goes by ``turn``."""

    cards: list[Card]
    queue: list[tuple[int, Request]] = field(default_factory=list)
    holds: dict[int, tuple[tuple[str, ...], Request]] = field(default_factory=dict)
    most_overtaken: int = 0

    def held(self) -> dict[str, list[int]]:
        """Return what is held of each card."""
        found: dict[str, list[int]] = {card.name: [] for card in self.cards}
        for names, request in self.holds.values():
            for card in self.cards:
                if card.name in names:
                    found[card.name].append(request.share_of(card))
        return found

    def look(self, place: int) -> bool:
        """Let one of those who wait look; return whether it got what it wants."""
        requests = [request for _, request in self.queue]
        found = turn(self.cards, self.held(), requests, place)
        number, request = self.queue[place]
        if not found.cards:
            kept = packing.room_to_keep(self.cards, self.held(), requests, place)
            self.queue[place] = (number, request._replace(kept=kept))
            return False
        for one in found.overtakes:
            other, passed = self.queue[one]
            self.queue[one] = (other, passed._replace(overtaken=passed.overtaken + 1))
            self.most_overtaken = max(self.most_overtaken, passed.overtaken + 1)
        assert len(set(found.cards)) == request.n
        assert set(found.cards) <= set(request.cards)
        del self.queue[place]
        self.holds[number] = (found.cards, request)
        for card in self.cards:
            mine = self.held()[card.name]
            assert sum(mine) <= card.capacity
            if request.memory is not None and card.name in found.cards:
                assert sum(mine) + card.others <= card.capacity
            alone = [one for names, one in self.holds.values() if card.name in names and one.alone]
            assert not alone or len(mine) == 1
        return True


@st.composite
def machines(draw: st.DrawFn) -> tuple[list[Card], list[Request]]:
    """Cards of one size, strangers on some, and wishes that each fit on them if they are free."""
    count = draw(st.integers(1, 3))
    others = [draw(st.sampled_from([0, 0, 10])) for _ in range(count)]
    cards = [Card(name, 100, other) for name, other in zip("abc", others, strict=False)]
    wishes = []
    for _ in range(draw(st.integers(1, 12))):
        names = draw(st.permutations([card.name for card in cards]))
        names = names[: draw(st.integers(1, count))]
        kind = draw(st.sampled_from(["alone", "share", "memory", "memory", "memory"]))
        memory = draw(st.integers(1, 90)) if kind == "memory" else None
        n = draw(st.integers(1, len(names)))
        wishes.append(Request(n, tuple(names), 1 if kind == "share" else PARTS, memory))
    return cards, wishes


@settings(max_examples=200, deadline=None)
@given(machines(), st.lists(st.integers(0, 99), max_size=120))
def test_any_tests_get_their_turn_and_no_card_is_ever_overfull(
    given_machine: tuple[list[Card], list[Request]], steps: list[int]
) -> None:
    cards, wishes = given_machine
    machine = Machine(cards)
    waiting = list(enumerate(wishes))
    for step in steps:
        kind, which = step % 3, step // 3
        if kind == 0 and waiting:
            machine.queue.append(waiting.pop(0))
        elif kind == 1 and machine.queue:
            machine.look(which % len(machine.queue))
        elif kind == 2 and machine.holds:
            del machine.holds[sorted(machine.holds)[which % len(machine.holds)]]
    machine.queue += waiting
    # From here on everybody who holds gives back, one at a time, and all look again and again.
    for _ in range(3 * len(wishes)):
        place = 0
        while place < len(machine.queue):
            place = 0 if machine.look(place) else place + 1
        if machine.holds:
            del machine.holds[min(machine.holds)]
    assert not machine.queue, "somebody waits for ever"
    assert machine.most_overtaken <= MOST_OVERTAKEN


def test_a_stream_of_small_tests_does_not_starve_a_big_one() -> None:
    machine = Machine([Card("a", 100), Card("b", 100)])
    small = Request(1, ("a", "b"), memory=30)
    for number in range(4):
        machine.queue.append((number, small))
        assert machine.look(0)
    machine.queue.append((4, Request(2, ("a", "b"), memory=80)))
    for number in range(5, 100):
        machine.queue.append((number, small))
        del machine.holds[min(machine.holds)]  # the oldest ends
        for _ in range(2):
            for place in reversed(range(len(machine.queue))):  # the youngest looks first
                machine.look(place)
        if 4 in machine.holds:
            break
    assert 4 in machine.holds
    assert machine.most_overtaken <= MOST_OVERTAKEN
