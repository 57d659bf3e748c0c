"""The hooks that other plugins and conftest files may implement.

Each is called by itself for each plugin: what one raises keeps no other from being called. It is
told in the summary with the plugin's line, and fails the session; of ``pytest_cudafork_isolate`` it
fails the test.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_cudafork.capture.story.verdicts import CheckedCapture
    from pytest_cudafork.observe.story.touch import Touch


@pytest.hookspec
def pytest_cudafork_touch(config: pytest.Config, touch: Touch, nodeid: str) -> None:
    """Take note of a call that initialized the CUDA driver, or tried to.

    Called under ``--cuda-fork-check``, once for each touch that is recorded, in whatever process it
    happened. With pytest-xdist in the controller, never in a worker; never in the process of an
    isolated test. A touch of a test is told when its report is there, those at import after the
    collection of their file, and all that is left when the session ends.

    Args:
        config: The session's configuration.
        touch: What happened: process, call, culprit line, stack, imports.
        nodeid: The test in which it happened; "" outside tests.

    """


@pytest.hookspec(firstresult=True)
def pytest_cudafork_isolate(item: pytest.Item) -> str | None:
    """Say how a test is to be isolated.

    Called once for each test whose own markers ask for no isolation, when all tests are collected
    and chosen, in each process that collects them (with pytest-xdist in every worker: give the same
    answer there). A conftest is asked for the tests below its folder.

    Args:
        item: The test.

    Returns:
        "fork", "forkserver", "spawn" or "auto"; None leaves it to other plugins and the options.
        The first answer counts.

    """


@pytest.hookspec
def pytest_cudafork_capture_checked(
    config: pytest.Config, capture: CheckedCapture, nodeid: str
) -> None:
    """Take note of a captured graph that was checked.

    Called for each call of ``capture_pair`` and ``assert_replay_equals_eager`` that came to a
    verdict, when the report of its test is there. Under ``--cuda-fork-captures`` also once for each
    phase of a test that captured or replayed graphs by itself: the title is "captured graphs" then,
    ``notes`` has the suspicions. The process is that of ``pytest_cudafork_touch``.

    Args:
        config: The session's configuration.
        capture: Verdict, checks and findings.
        nodeid: The test.

    """
