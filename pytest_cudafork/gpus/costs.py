"""What tests cost: recorded while they run, kept as a profile, used to pack the next session.

Each process that runs tests measures and says so in the report of the teardown; the one that writes
the summary gathers. In the process of an isolated test torch's own count is added to its reports.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cudafork.baseline.file import alone
from pytest_cudafork.check.failing import fail_session
from pytest_cudafork.check.session import SESSION
from pytest_cudafork.compat import pytest_reports
from pytest_cudafork.counted import count_of
from pytest_cudafork.gpus.lease import LEASE
from pytest_cudafork.gpus.order import Planned, best_order
from pytest_cudafork.gpus.packing import PARTS, Card, Request
from pytest_cudafork.gpus.profile import (
    Cost,
    ProfileError,
    models_of,
    read_profile,
    write_profile,
)
from pytest_cudafork.gpus.usage import Usage, forget_peak, peak_of, reserved_by_torch
from pytest_cudafork.isolate.groups import scope_of
from pytest_cudafork.settings.gpu_requests import GpuWish
from pytest_cudafork.settings.marker_values import against_gpus
from pytest_cudafork.settings.markers import WATCHER, give_gpus, marks_of
from pytest_cudafork.settings.sizes import spell_size

if TYPE_CHECKING:
    from pytest_cudafork.gpus.lending import Lender

_MOST_SHOWN = 10
_RESERVED, _COST = "_cudafork_reserved", "_cudafork_cost"
"""Attributes of reports, for those travel between processes."""
_MARGIN = 1.1
_MARGIN_BYTES = 256 << 20
"""By how much what a test may have exceeds what it was seen to use."""
_LEAST_BYTES = 1 << 30
"""What another test takes at least, by its context and the same margin: where that is not left on a
GPU, whoever fills it has it to itself, and need not wait for a margin that is not there."""


def begin(config: pytest.Config, lender: Lender) -> None:
    """Register what the options ask for.

    Raises:
        pytest.UsageError: a file is none, or is of another machine.

    """
    settings = config.stash[SESSION].settings
    if config.stash[SESSION].isolated:
        if settings.profile:
            config.pluginmanager.register(ChildCosts(), "cudafork-costs")
        return
    manager = config.pluginmanager
    if settings.pack:
        # A first run that is recorded in the file by which the next one is packed.
        begins = settings.pack == settings.profile and not os.path.lexists(settings.pack)
        costs = {} if begins else _read("--cuda-fork-pack", settings.pack, lender)
        manager.register(Packing(costs, lender), "cudafork-packing")
    if settings.profile:
        earlier: dict[str, Cost] = {}
        if os.path.exists(settings.profile) and not os.path.isfile(settings.profile):
            raise pytest.UsageError(f"--cuda-fork-profile: {settings.profile} is no file")
        if os.path.exists(settings.profile):
            earlier = _read("--cuda-fork-profile", settings.profile, lender)
        elif not os.path.isdir(folder := os.path.dirname(os.path.realpath(settings.profile))):
            raise pytest.UsageError(f"--cuda-fork-profile: there is no folder {folder!r}")
        costs_of = Costs(config, settings.profile, lender, earlier)
        manager.register(costs_of, "cudafork-costs")


def _read(option: str, path: str, lender: Lender) -> dict[str, Cost]:
    try:
        return read_profile(path, models_of(lender.inventory().machine.gpus))
    except ProfileError as error:
        raise pytest.UsageError(f"{option}: {error}") from None


class ChildCosts:
    """Adds to the reports of an isolated test what torch has counted."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Say what torch had reserved at most until the end of this phase."""
        report = yield
        reserved = reserved_by_torch()
        if any(reserved):
            vars(report)[_RESERVED] = reserved
        return report


class Costs(ChildCosts):
    """Measures the tests of this process, and gathers what others have measured."""

    def __init__(
        self, config: pytest.Config, path: str, lender: Lender, earlier: dict[str, Cost]
    ) -> None:
        self._path = path
        self._lender = lender
        self._costs = earlier
        self._pid = os.getpid()
        self._gathers = not hasattr(config, "workerinput")
        self._usage: Usage | None = None
        self._reports: dict[str, list[pytest.TestReport]] = {}
        self._new: dict[str, Cost] = {}
        self._trouble = ""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Measure a test while its protocol lasts; its GPUs are known by now."""
        if self._pid != os.getpid():
            return (yield)
        lease = item.stash.get(LEASE, None)
        gpus = () if not self._lender.measures else self._lender.inventory().gpus
        before = None
        if lease is not None:
            gpus, before = lease.gpus, lease.before
        alone = lease is not None and lease.alone
        self._usage = Usage(gpus if self._lender.measures else (), before, alone=alone)
        item.stash[WATCHER] = self._usage.look
        forget_peak()
        try:
            return (yield)
        finally:
            self._usage = None
            del item.stash[WATCHER]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add what was measured to the last report of a test, and gather it."""
        usage = self._usage
        if self._pid != os.getpid():
            return
        if usage is not None:
            usage.add(vars(report).get(_RESERVED, ()))
            if report.when == "teardown":
                isolated = hasattr(report, "isolation")
                ram = usage.ram if isolated else peak_of(os.getpid())
                cost = [usage.gpus_used, max(usage.vram, default=0), ram]
                vars(report)[_COST] = cost
        if self._gathers:
            if report.when == "setup":  # of a run before, whose process died, there is no teardown
                self._reports[report.nodeid] = []
            self._reports.setdefault(report.nodeid, []).append(report)
            if report.when == "teardown":
                self._conclude(report)

    def _conclude(self, last: pytest.TestReport) -> None:
        reports = self._reports.pop(last.nodeid)
        measured = vars(last).get(_COST)
        # The time of a part of a test, a subtest, is in that of its call; it may have been skipped.
        phases = [report for report in reports if not pytest_reports.is_of_subtest(report)]
        passed = all(report.outcome == "passed" for report in phases)
        if measured is None or not passed or any(report.failed for report in reports):
            return  # what a failed test has used says little
        seconds = round(sum(report.duration for report in phases), 3)
        self._new[last.nodeid] = Cost(seconds, *measured)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the profile; as with other files, one that cannot be written fails the session."""
        if not self._gathers or self._pid != os.getpid():
            return
        models = models_of(self._lender.inventory().machine.gpus)
        try:
            with alone(self._path):
                if os.path.exists(self._path):  # other sessions may have written it meanwhile
                    self._costs.update(read_profile(self._path, models))
                write_profile(self._path, models, {**self._costs, **self._new})
        except (OSError, ProfileError) as error:
            self._trouble = f"the profile could not be written: {error}"
            fail_session(session, [self._trouble])

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show the longest tests and the largest."""
        terminalreporter.section("time and memory of tests")
        for line in summary_lines(self._new):
            terminalreporter.write_line(line)
        if self._trouble:
            terminalreporter.write_line(f"ERROR: {self._trouble}", red=True)
        else:
            measured = count_of(len(self._new), "test")
            terminalreporter.write_line(f"profile: {self._path} ({measured} measured)")


def summary_lines(costs: dict[str, Cost]) -> list[str]:
    """Return the lists of the longest tests and of the largest in RAM and in GPU memory."""
    lines = []
    for title, field in (
        ("longest", "seconds"),
        ("largest in RAM", "ram"),
        ("largest in GPU memory", "vram"),
    ):
        found = [(getattr(cost, field), test, cost) for test, cost in costs.items()]
        largest = sorted((one for one in found if one[0]), key=lambda one: (-one[0], one[1]))
        if largest:
            lines.append(f"{title}:")
        for value, test, cost in largest[:_MOST_SHOWN]:
            words = f"{value:.2f} s" if field == "seconds" else spell_size(value)
            several = f" on each of {cost.gpus} GPUs" if field == "vram" and cost.gpus > 1 else ""
            lines.append(f"  {words:>10}  {test}{several}")
    return lines


class Packing:
    """Gives tests what the profile says that they need, and puts them in a good order."""

    def __init__(self, costs: dict[str, Cost], lender: Lender) -> None:
        self._costs = costs
        self._lender = lender

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Do both, alike in all workers of pytest-xdist."""
        for item in items:
            cost = self._costs.get(item.nodeid)
            if cost is not None:
                self._give(item, cost)
        packed = [item for item in items if _is_packed(item)]
        rest = [item for item in items if not _is_packed(item)]
        items[:] = [*self._in_order(packed), *rest]

    def _in_order(self, packed: list[pytest.Item]) -> list[pytest.Item]:
        """Return packed tests as they start; one of which nothing is known may be the longest."""
        unknown, known, planned = [], [], []
        for item in packed:
            cost, request = self._costs.get(item.nodeid), self._request(item)
            if cost is None or request is None:
                unknown.append(item)
            else:
                known.append(item)
                planned.append(Planned(request, cost.seconds))
        cards = [Card(gpu.uuid, gpu.memory or PARTS) for gpu in self._lender.inventory().gpus]
        workers = 1
        if known:
            workers = getattr(known[0].config, "workerinput", {}).get("workercount", 1)
        return [*unknown, *(known[one] for one in best_order(planned, cards, workers))]

    def _request(self, item: pytest.Item) -> Request | None:
        """Return what a test will wish for; None if it can never have that here."""
        wish, inventory = marks_of(item).gpus, self._lender.inventory()
        if wish is None or inventory.shortage(wish.n) or inventory.excess(wish.n, wish.memory):
            return None
        names = tuple(gpu.uuid for gpu in inventory.candidates(wish.n, wish.memory))
        return Request(wish.n, names, 1 if wish.share else PARTS, wish.memory)

    def _give(self, item: pytest.Item, cost: Cost) -> None:
        marks = marks_of(item)
        if not cost.vram or marks.complaint or marks.left_alone or scope_of(item) != "test":
            return
        if against_gpus(dict(marks.env)):
            return
        inventory = self._lender.inventory()
        wish = marks.gpus
        if wish is None:  # one that asks for none must not be skipped for want of them
            most = next((n for n in range(cost.gpus, 0, -1) if not inventory.shortage(n)), 0)
            if most == 0:
                return
            wish = GpuWish(most)
            if most < cost.gpus:  # what it had on several may now be on these
                give_gpus(item, wish)
                return
        if wish.memory is None and not wish.share:
            need = int(cost.vram * _MARGIN) + _MARGIN_BYTES
            full = bool(inventory.excess(wish.n, need + _LEAST_BYTES))
            give_gpus(item, wish._replace(memory=None if full else need))


def _is_packed(item: pytest.Item) -> bool:
    """Whether a test may run at any time: it has GPUs, and its process to itself."""
    return marks_of(item).gpus is not None and scope_of(item) == "test"
