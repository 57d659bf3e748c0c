"""Whose turn it is, and on which GPUs: tests share a GPU as far as its memory allows.

Nothing is locked or measured here: from who holds what and who waits, ``turn`` works out what one
of those who wait may take. All that wait ask by themselves, with the same answer for everybody, so
no process has to be the one that decides.

Who came first is served first. What an earlier one cannot use yet, a later one may have: so a small
test runs beside big ones while a big one waits. That happens ``MOST_OVERTAKEN`` times at most. Then
room is kept on the GPUs that the earlier one has chosen, until those who hold them are done. A test
that needs GPUs to itself is not overtaken at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

PARTS = 8
"""How many tests that allow sharing, and say nothing of memory, may have the same GPU at once."""
MOST_OVERTAKEN = 8
"""How often a test may wait for room that later ones take meanwhile."""


class Card(NamedTuple):
    """A GPU as it is shared: ``capacity`` and what strangers hold, ``others``, in bytes.

    A GPU whose memory is not known has ``PARTS`` units of which nobody knows the size.
    """

    name: str
    capacity: int = PARTS
    others: int = 0


class Request(NamedTuple):
    """What somebody wants who waits: `n` of the ``cards``, to be chosen in that order.

    ``memory`` is in bytes on each; None: ``parts`` of each, all of them for a GPU to oneself.
    """

    n: int
    cards: tuple[str, ...]
    parts: int = PARTS
    memory: int | None = None
    overtaken: int = 0
    kept: tuple[str, ...] = ()
    """The cards on which room is kept for it."""

    @property
    def alone(self) -> bool:
        """Whether it has its cards to itself."""
        return self.memory is None and self.parts >= PARTS

    @property
    def is_due(self) -> bool:
        """Whether it may not be overtaken any more."""
        return self.alone or self.overtaken >= MOST_OVERTAKEN

    def share_of(self, card: Card) -> int:
        """Return what it takes of a card."""
        if self.memory is not None and card.capacity > PARTS:
            return self.memory
        parts = PARTS if self.memory is not None else self.parts
        return -(-card.capacity * parts // PARTS)


class Turn(NamedTuple):
    """What one of those who wait may take now, and the earlier ones that it overtakes so.

    ``cards`` is empty while there is nothing for it; ``behind`` says that this is because others
    came first.
    """

    cards: tuple[str, ...] = ()
    overtakes: tuple[int, ...] = ()
    behind: bool = False


class Table:
    """What is left of each card, as those in the queue are gone through from its head."""

    def __init__(self, cards: Iterable[Card], held: Mapping[str, Sequence[int]]) -> None:
        """Take the cards, and of each what its holders have of it."""
        self._cards = {card.name: card for card in cards}
        self._left = {
            name: card.capacity - sum(held.get(name, ())) for name, card in self._cards.items()
        }
        self._holders = {name: len(held.get(name, ())) for name in self._cards}

    def choose(self, request: Request) -> tuple[str, ...]:
        """Return the cards to give it, those with the fewest holders; () if there are too few."""
        fitting = [name for name in request.cards if self._fits(request, name)]
        if len(fitting) < request.n:
            return ()
        if not request.alone:  # in order, those that it has to itself: the same one again
            fitting.sort(key=lambda name: (self._holders[name], -self._left[name]))
        chosen = fitting[: request.n]
        return tuple(name for name in request.cards if name in chosen)

    def keep_for(self, request: Request) -> tuple[str, ...]:
        """Return the cards on which to keep room for one that is due: they will be free first.

        Those that were chosen before stay, or it would wait for one today and another tomorrow.
        """
        able = [name for name in request.cards if self._could_ever(request, name)]
        kept = [name for name in request.kept if name in able]
        rest = sorted(
            (name for name in able if name not in kept), key=lambda name: -self._left[name]
        )
        return tuple((kept + rest)[: request.n])

    def take(self, request: Request, cards: Iterable[str]) -> None:
        """Take its share of these cards out, whether it is there or not."""
        for name in cards:
            self._left[name] -= request.share_of(self._cards[name])
            self._holders[name] += 1

    def _fits(self, request: Request, name: str) -> bool:
        card = self._cards.get(name)
        if card is None:
            return False
        left = self._left[name] - (card.others if request.memory is not None else 0)
        return left >= request.share_of(card)

    def _could_ever(self, request: Request, name: str) -> bool:
        card = self._cards.get(name)
        if card is None:
            return False
        free = card.capacity - (card.others if request.memory is not None else 0)
        return free >= request.share_of(card)


def turn(
    cards: Sequence[Card], held: Mapping[str, Sequence[int]], queue: Sequence[Request], mine: int
) -> Turn:
    """Work out what one of those who wait may take.

    Args:
        cards: All cards that anybody asks for, as far as they are known.
        held: What holders have of each card, one number for each holder.
        queue: Those who wait, who came first in front.
        mine: The place of the one who asks.

    """
    table = Table(cards, held)
    at_once = table.choose(queue[mine])
    overtakes = []
    for place, request in enumerate(queue[:mine]):
        chosen = table.choose(request)
        if not chosen and request.is_due:
            chosen = table.keep_for(request)
        if chosen:  # it will take them when it looks next
            table.take(request, chosen)
        else:
            overtakes.append(place)
    chosen = table.choose(queue[mine])
    if not chosen:
        return Turn(behind=bool(at_once))
    passed = [place for place in overtakes if set(queue[place].cards) & set(chosen)]
    return Turn(chosen, tuple(passed))


def room_to_keep(
    cards: Sequence[Card], held: Mapping[str, Sequence[int]], queue: Sequence[Request], mine: int
) -> tuple[str, ...]:
    """Return the cards on which room is to be kept for one of those who wait; () if for none."""
    if not queue[mine].is_due:
        return ()
    table = Table(cards, held)
    for request in queue[:mine]:
        chosen = table.choose(request) or (table.keep_for(request) if request.is_due else ())
        table.take(request, chosen)
    return table.keep_for(queue[mine])


def held_by_others(used: int, claimed: int, noted: int) -> int:
    """Return what strangers hold of a card, in bytes, as well as it can be told from outside.

    Tests hold between nothing and what they claimed of it, so strangers hold between all that is in
    use and what is in use beyond that; in between what was noted last is believed.
    """
    return max(0, used - claimed, min(noted, used))
