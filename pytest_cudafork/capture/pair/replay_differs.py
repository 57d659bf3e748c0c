"""The check ``replay-differs``: replays compute what eager runs on new states compute.

The rounds find ``no-op-replay``, ``moved-input``, ``rng-frozen`` and ``uninitialized-read``, too.
"""

from __future__ import annotations

from pytest_cudafork.capture.pair.evidence import Evidence
from pytest_cudafork.capture.replay.pair_subject import PairSubject
from pytest_cudafork.capture.replay.rounds import Rounds
from pytest_cudafork.capture.replay.stimulus import (
    Stimulus,
    name_of,
    other_float_inputs,
    takes_argument,
)


def check(pair: Evidence) -> None:
    """Replay after each change of the inputs, and compare."""
    passes, log, arguments = pair.passes, pair.log, pair.arguments
    subject = PairSubject(passes, arguments.outputs, log)
    subject.watched = pair.kept
    before = len(log.findings)
    cuda = passes.backend.name == "cuda"
    rounds = Rounds(subject, log, arguments.tolerance, poison=arguments.poison, cuda=cuda)
    log.did("replay-differs", "moved-input")
    rounds.run(Stimulus("the capture", lambda: None, "same"))
    rounds.asides(rng=arguments.rng)
    if arguments.poison and subject.inputs():
        rounds.run(other_float_inputs(subject.inputs))
    for index, change in enumerate(arguments.vary):
        rounds.run(Stimulus(name_of(change, f"vary[{index}]"), subject.varying(change)))
        if pair.after_vary is not None:
            pair.after_vary()
    if arguments.vary and not any(takes_argument(change) for change in arguments.vary):
        rounds.run(Stimulus("the first inputs again", subject.varying(None), "back"))
    pair.replays_differ = len(log.findings) > before
    pair.compared = rounds.compared
    pair.refreshed, pair.varied = subject.refreshed, subject.varied
