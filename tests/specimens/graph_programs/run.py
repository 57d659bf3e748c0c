"""What the plugin's checks say of a graph program, and what they must say."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed as dist

from pytest_cudafork import assert_replay_equals_eager
from pytest_cudafork.capture.pair.capture_pair import capture_pair
from pytest_cudafork.errors import GraphCaptureError, GraphNotJudgedError
from tests.specimens.graph_programs.program import Pair, Place, Program, Verdict

__all__ = ["expected_outcomes", "judge"]

PASSES, FAILS, NOT_JUDGED = "PASSES", "FAILS", "NOT JUDGED"


def expected_outcomes(program: Program, backend: str) -> tuple[str, ...]:
    """Return what :func:`judge` may say. What is documented as a limit may be anything."""
    if backend in program.documented:
        return (PASSES, FAILS, NOT_JUDGED)
    return (PASSES,) if program.verdict is Verdict.RIGHT else (FAILS,)


def judge(program: Program, backend: str) -> tuple[str, str]:
    """Return whether the program's check passes, fails or does not judge, and what it says.

    Programs that make a graph of their own are judged as a test with them would be: an error while
    they do is a failure, too.
    """
    torch.manual_seed(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _check(program.build(Place(backend)), backend)
    except GraphNotJudgedError as error:
        return NOT_JUDGED, str(error)[:3000]
    except GraphCaptureError as error:
        return FAILS, str(error)[:3000]
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    return PASSES, ""


def _check(case: Any, backend: str) -> None:
    options = dict(case.options)
    if isinstance(case, Pair):
        capture_pair(
            case.create,
            case.desc,
            persistent=dict(case.persistent),
            vary=list(case.vary),
            backend=backend,
            **options,
        )
    else:
        assert_replay_equals_eager(
            case.fn, case.inputs, vary=list(case.vary), backend=backend, **options
        )
