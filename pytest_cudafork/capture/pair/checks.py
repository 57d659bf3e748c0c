"""The table of the checks of a pair: their names, their order, what each of them needs.

A further check is a function of the :class:`Evidence` in a module of its own, a row here, and a
name in ``interface/check_names.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pytest_cudafork.capture.interface.check_names import CheckName
from pytest_cudafork.capture.pair import (
    aliased_state,
    lazy_init_skipped,
    missing_kernels,
    not_shared,
    replay_differs,
    wrong_contents,
)
from pytest_cudafork.capture.pair.evidence import Evidence
from pytest_cudafork.capture.state.tensors import restored


class PairCheck(NamedTuple):
    """One check of a pair."""

    name: CheckName  # of its findings; it may make others beside
    run: Callable[[Evidence], None]
    needs_graph: bool = True  # it does not run where the capture failed
    not_piecewise: str = ""  # why it does not run in mode PIECEWISE; "": it does
    conclude: Callable[[Evidence], None] | None = None  # decides when all checks have run


CHECKS = (
    PairCheck(
        "aliased-state",
        aliased_state.check,
        needs_graph=False,
        not_piecewise="the states may be one object",
        conclude=aliased_state.conclude,
    ),
    PairCheck(
        "lazy-init-skipped",
        lazy_init_skipped.check,
        needs_graph=False,
        not_piecewise="initialization is not captured",
        conclude=lazy_init_skipped.conclude,
    ),
    PairCheck("not-shared", not_shared.check),
    PairCheck("wrong-contents", wrong_contents.check),
    PairCheck(
        "missing-kernels",
        missing_kernels.check,
        not_piecewise="the pieces are captured apart",
        conclude=missing_kernels.conclude,
    ),
    PairCheck("replay-differs", replay_differs.check, conclude=replay_differs.conclude),
)
"""In the order in which they run; they conclude in this order, too."""


def run_checks(pair: Evidence) -> None:
    """Run all checks that can be run on these passes; what they find is in the log."""
    for check in CHECKS:
        if not check.needs_graph:
            _run(check, pair)
    passes = pair.passes
    if passes.graph is None:
        return
    inputs = passes.persistent(passes.captured)
    with restored(inputs, lambda: bool(pair.log.findings)) as pair.first_inputs:
        for check in CHECKS:
            if check.needs_graph:
                pair.first_inputs.restore()  # whatever the check before has left in them
                _run(check, pair)
        for check in CHECKS:
            if check.conclude is not None:
                check.conclude(pair)


def _run(check: PairCheck, pair: Evidence) -> None:
    if check.not_piecewise and pair.passes.mode == "PIECEWISE":
        pair.log.cannot(check.name, f"mode PIECEWISE: {check.not_piecewise}")
    else:
        check.run(pair)
