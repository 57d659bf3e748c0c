"""Which graph backend a test runs with: the marker, the option, and what there is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from pytest_cudafork.check.session import SESSION
from pytest_cudafork.settings import markers
from pytest_cudafork.settings.real_driver import has_real_driver
from pytest_cudafork.without_torch import needs_torch, torch_is_missing

if TYPE_CHECKING:
    from pytest_cudafork.capture.interface.backend import GraphBackend

FIXTURE = "graph_backend"


def choose_for_session(config: pytest.Config) -> None:
    """Let the option say what "auto" means, for code that asks for no fixture.

    Raises:
        pytest.UsageError: real graphs are asked for, and there is no driver.

    """
    from pytest_cudafork.capture.choose import preferring, why_no_gpu

    name = config.stash[SESSION].settings.graphs or "auto"
    if name == "cuda" and not has_real_driver():
        raise pytest.UsageError(
            f"--cuda-fork-graphs=cuda: real graphs cannot be captured here ({why_no_gpu()}); use "
            "auto or software"
        )
    stack = ExitStack()
    stack.enter_context(preferring(name))
    config.add_cleanup(stack.close)
    if name == "software":
        from pytest_cudafork.capture.stand_ins.for_tests import StandIns

        config.pluginmanager.register(StandIns(), "cudafork-stand-ins")


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Make one test for each backend that the marker names; a wrong one is told in the set-up."""
    markers.parametrize(metafunc, FIXTURE, lambda marks: marks.graphs)


def backend_for_test(request: pytest.FixtureRequest) -> Iterator[GraphBackend]:
    """Run the fixture: choose the backend, let "auto" mean it meanwhile."""
    from pytest_cudafork.capture.choose import preferring, resolve, usable, why_not

    asked = request.config.stash[SESSION].settings.graphs or "auto"
    marked: str | None = getattr(request, "param", None)
    if marked is not None and asked not in ("auto", marked):
        pytest.skip(f"the test runs with the {marked} graph here, and --cuda-fork-graphs={asked}")
    name = resolve(marked or asked)
    if name == "software" and torch_is_missing():
        fixtures = f"the fixtures {FIXTURE} and capture_pair"
        pytest.fail(needs_torch(f"{fixtures} need"), pytrace=False)
    reason = why_not(name)
    if reason is not None:
        pytest.skip(f"the {name} graph cannot be used here: {reason}")
    with ExitStack() as stack:
        stack.enter_context(preferring(name))
        backend = usable(name)
        if name == "software":
            from pytest_cudafork.capture.stand_ins.for_tests import in_force_for_test

            stack.enter_context(in_force_for_test())
        yield backend
