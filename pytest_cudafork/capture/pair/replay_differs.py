"""The check ``replay-differs``: replays compute what eager runs on new states compute.

The rounds find ``no-op-replay``, ``moved-input``, ``rng-frozen`` and ``uninitialized-read``, too.
"""

from __future__ import annotations

from pytest_cudafork.capture.pair.evidence import Evidence
from pytest_cudafork.capture.replay.pair_subject import PairSubject
from pytest_cudafork.capture.replay.rounds import Rounds
from pytest_cudafork.capture.replay.stimulus import (
    Stimulus,
    other_float_inputs,
    takes_argument,
)

_WRONG_RESULTS = ("replay-differs", "no-op-replay")


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
        apply = subject.varying(change)
        rounds.run(Stimulus(f"vary[{index}]", apply, given=change))
        if pair.after_vary is not None:
            pair.after_vary()
    if arguments.vary and not any(takes_argument(change) for change in arguments.vary):
        rounds.run(Stimulus("the first inputs again", subject.varying(None), "back"))
    pair.replays_differ = any(one.check in _WRONG_RESULTS for one in log.findings[before:])
    pair.compared = rounds.compared
    pair.differs_anew = rounds.differs_anew
    pair.refreshed, pair.varied = subject.refreshed, subject.varied


def conclude(pair: Evidence) -> None:
    """Report what the forward keeps of the warm-up although it depends on the inputs."""
    if not pair.differs_anew or pair.log.findings:
        return
    changed = pair.passes.changed_beside
    words = [f"{one.path} ({one.before} -> {one.after})" for one in changed[:4]]
    pair.log.add(
        "lazy-init-skipped",
        f"the warm-up set {', '.join(words)}, which the forward keeps for other inputs. Compared "
        f"with eager code that begins anew: {pair.differs_anew}",
        path=changed[0].path,
        where=pair.line_that_set_beside(),
        why="eager code keeps it, too, so it agrees with the replay: both go by the inputs of the "
        "warm-up",
        todo="compute it anew for each batch, in the forward from tensors, or outside in a place "
        "that vary calls, too",
    )
