"""In which order packed tests start: some orders are tried out on paper, and the best is taken.

Who runs when, and on which GPUs, is decided while tests run, by ``packing``. So what an order leads
to can be worked out beforehand by the same decisions, as far as it is known how long tests take.
The first order that is tried has the longest tests in front, those that need several GPUs at once
before all; the others weigh memory in, and chance.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from pytest_cudafork.gpus.packing import Card, Request, turn

_MOST_ORDERS = 30
_MOST_TESTS = 2000
"""How many tests are played in all: a third of a second."""


class Planned(NamedTuple):
    """A test of which it is known what it needs and how long it takes, in seconds."""

    request: Request
    seconds: float


def best_order(tests: Sequence[Planned], cards: Sequence[Card], workers: int) -> list[int]:
    """Return the numbers of the tests in the order in which to start them.

    The answer is the same in each process that asks.

    Args:
        tests: What is to run.
        cards: The GPUs.
        workers: How many tests run or wait at once.

    """
    orders = min(_MOST_ORDERS, _MOST_TESTS // max(1, len(tests))) if workers > 1 else 1
    chance = random.Random(0)
    largest = max((card.capacity for card in cards), default=1)
    best: list[int] = []
    least = math.inf
    for number in range(max(1, orders)):
        order = _order(tests, largest, chance if number else None)
        seconds = seconds_of([tests[one] for one in order], cards, workers) if orders > 1 else 0.0
        if seconds < least or not best:
            best, least = order, seconds
    return best


def _order(tests: Sequence[Planned], largest: int, chance: random.Random | None) -> list[int]:
    """Return an order: by GPUs and length, or with memory and chance in it."""
    if chance is None:
        return sorted(
            range(len(tests)), key=lambda one: (-tests[one].request.n, -tests[one].seconds)
        )
    weight, spread = chance.uniform(0.5, 1.0), chance.uniform(0.0, 0.4)
    several_first = chance.random() < 0.5
    keys = []
    for request, seconds in tests:
        part = 1.0 if request.memory is None else request.memory / largest
        size = seconds**weight * part ** (1 - weight) * chance.uniform(1 - spread, 1 + spread)
        keys.append((-request.n, -size) if several_first else (0, -size * request.n))
    return sorted(range(len(tests)), key=lambda one: keys[one])


def seconds_of(tests: Sequence[Planned], cards: Sequence[Card], workers: int) -> float:
    """Work out how long tests take that start in this order, if nothing else took any time.

    Returns:
        Seconds; infinite if one of them can never have what it needs.

    """
    to_come = deque(tests)
    queue: list[Planned] = []
    running: list[tuple[float, int, Request, tuple[str, ...]]] = []
    now = 0.0
    started = 0
    while to_come or queue or running:
        while to_come and len(queue) + len(running) < workers:
            queue.append(to_come.popleft())
        place = 0
        while place < len(queue):
            requests = [one.request for one in queue]
            found = turn(cards, _held(cards, running), requests, place)
            for passed in found.overtakes:
                request = queue[passed].request
                passing = request._replace(overtaken=request.overtaken + 1)
                queue[passed] = queue[passed]._replace(request=passing)
            if found.cards:
                request, seconds = queue.pop(place)
                started += 1
                heapq.heappush(running, (now + seconds, started, request, found.cards))
                place = 0
            else:
                place += 1
        if not running:
            return math.inf
        now = heapq.heappop(running)[0]
    return now


def _held(
    cards: Sequence[Card], running: Sequence[tuple[float, int, Request, tuple[str, ...]]]
) -> dict[str, list[int]]:
    return {
        card.name: [
            request.share_of(card) for _, _, request, chosen in running if card.name in chosen
        ]
        for card in cards
    }
