"""What the controller tells a worker on another host: its options, and what the baseline accepts.

The worker has the command line from pytest-xdist. Variables of the environment, an ini file that
was not copied, and the baseline's file are not on its host.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from pytest_cudafork.check import session
from pytest_cudafork.check.accepted import Terms
from pytest_cudafork.check.session import SESSION
from pytest_cudafork.settings.option import given_text
from pytest_cudafork.settings.options import OPTIONS

KEY = "_cudafork"
"""Where it stands in the input of a worker."""
_LATE = (
    "the check began after the conftests, because only the controller's environment or ini file "
    "says how: add --cuda-fork-check and --cuda-fork-device to the command line"
)


def message_for_worker(config: pytest.Config) -> dict[str, Any]:
    """Return what a worker on another host is told, as values that execnet takes."""
    variables = {}
    for option in OPTIONS:
        given = None if option.is_file else given_text(config, config.option, option)
        if given is not None and given[0] != option.flag:
            variables[option.env] = given[1]
    watch = config.stash[SESSION].watch
    terms = watch.acceptance.terms if watch is not None else None
    baseline = terms.rows() if terms is not None else None
    everything = terms is not None and terms.everything
    return {"variables": variables, "baseline": baseline, "everything": everything}


def take_message(config: pytest.Config) -> str:
    """Do what the controller says, in a worker on another host; nothing in any other process.

    What is set on the worker's host itself stays: it knows its GPUs.

    Returns:
        What cannot be seen because the check was told of so late, in words; "" if it was not.

    Raises:
        pytest.UsageError: an option is wrong there, or what it asks for is not to be had.

    """
    told = getattr(config, "workerinput", {}).get(KEY)
    if told is None:
        return ""
    watch = config.stash[SESSION].watch
    state = session.begin_again(config, told["variables"])
    if state.watch is not None and told["baseline"] is not None:
        terms = Terms(os.fspath(config.rootpath), {}, bool(told["everything"]))
        terms.add_rows(told["baseline"])
        state.watch.acceptance.begin(terms)
    return "" if state.watch is watch or state.watch is None else _LATE
