"""The hooks that give a test its GPUs and take them back.

The process of an isolated test finds what to see in ``CHILD_ENV``. With ``--pdb``, or where
isolation is off, the test runs in this process, whose environment is changed as long as it runs.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn

import pytest

from pytest_cudafork.check.session import SESSION
from pytest_cudafork.gpus.lending import Lender, Shortage, TooMuch, names
from pytest_cudafork.settings import environment
from pytest_cudafork.settings.markers import CHILD_ENV, marks_of

if TYPE_CHECKING:
    from pytest_cudafork.gpus.inventory import Gpu
    from pytest_cudafork.gpus.lending import Lease
    from pytest_cudafork.gpus.settle import Settling
    from pytest_cudafork.settings.gpu_requests import GpuChoice


class Refusal(NamedTuple):
    """Why a test does not get its GPUs: the machine lacks them (skip), or something is wrong."""

    outcome: Literal["skip", "fail"]
    text: str


LEASE = pytest.StashKey["Lease"]()
"""On a test with GPUs, while its protocol lasts."""
REFUSAL = pytest.StashKey[Refusal]()
"""On a test that is not run for want of GPUs, while its protocol lasts."""


class GpuLeases:
    """The plugin object; in the process of an isolated test it only marks that process."""

    def __init__(self, config: pytest.Config, choice: GpuChoice | None) -> None:
        """Take the value of ``--cuda-fork-gpus``; None: all GPUs."""
        self.lender = self._lender = Lender(config, choice)
        self._isolated = config.stash[SESSION].isolated
        self._pid = os.getpid()
        self._lease: Lease | None = None
        self._kept_for: pytest.Item | None = None
        """The next test that runs in the same child, and so with the same GPUs."""
        self._here: contextlib.ExitStack | None = None
        """The changes to this process, while a test runs in it with its GPUs."""
        self._marks: list[Any] = []
        self._config = config
        self._settling: Settling | None = None

    @property
    def _off(self) -> bool:
        """Whether this is the process of an isolated test; a forked one has these hooks, too."""
        return self._isolated or self._pid != os.getpid()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, Any, Any]:
        """Hold the GPUs that a test needs around everything that is done for it."""
        if (self._lease is None and not marks_of(item).gpus) or self._off:
            if self._settling is None or self._off or _is_skipped(item):
                return (yield)
            self._settle(item, self._settling.gpus)
            with self._refused(item):
                return (yield)
        lease = self._take_over(item) or self._take(item)
        with self._refused(item) if lease is None else self._lent(item, nextitem, lease):
            return (yield)

    @contextlib.contextmanager
    def _refused(self, item: pytest.Item) -> Iterator[None]:
        """Run a test without GPUs; its set-up says why."""
        try:
            yield
        finally:
            if REFUSAL in item.stash:
                del item.stash[REFUSAL]

    @contextlib.contextmanager
    def _lent(
        self, item: pytest.Item, nextitem: pytest.Item | None, lease: Lease
    ) -> Iterator[None]:
        """Run a test with its GPUs, and end the lease unless the next one has them, too."""
        variables = item.stash.setdefault(CHILD_ENV, {})
        variables.update(lease.environment)
        item.stash[LEASE] = lease
        try:
            yield
            if self._here is None and _goes_on_with(item, nextitem):
                self._kept_for = nextitem
            elif not self._off:
                self._look_back(item, lease)
        finally:
            del item.stash[LEASE]
            for name in lease.environment:
                variables.pop(name, None)
            if self._kept_for is None:
                self._give_back()

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self) -> None:
        """Look what is in use before the first test, if tests are to find it so again."""
        spare = self._config.stash[SESSION].settings.settle
        if spare is not None and not self._off and self._lender.measures:
            from pytest_cudafork.gpus import rocm
            from pytest_cudafork.gpus.settle import Settling

            gpus = self._lender.inventory().gpus
            self._settling = Settling(gpus or rocm.visible_gpus(), spare)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Give back what a group of tests had that was not run to its end."""
        self._give_back()
        if self._settling is not None and not self._off:
            self._settling.close()

    def _settle(self, item: pytest.Item, gpus: Sequence[Gpu]) -> None:
        """Wait until memory is back; leave a refusal if it is not.

        The workers of pytest-xdist do not know what tests without GPUs of their own use elsewhere.
        """
        alone = getattr(item.config, "workerinput", {}).get("workercount", 1) < 2
        if self._settling is not None and (alone or marks_of(item).gpus):
            from pytest_cudafork.gpus.waiting import words_of_unknown
            from pytest_cudafork.isolate.session.children import children_of

            if self._settling.unknown:
                _warn(item, words_of_unknown(self._settling.unknown))
                self._settling.unknown.clear()
            children_of(item.config).end_leftovers()
            why_not = self._settling.why_not(gpus)
            if why_not:
                item.stash[REFUSAL] = Refusal("fail", why_not)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skip or fail a test that gets no GPUs; else let the process that runs it see its own."""
        if REFUSAL in item.stash:
            _refuse(item, item.stash[REFUSAL])
        if self._isolated:
            locks = environment.value(environment.GPU_LOCKS)
            self._mark_this_process(os.path.basename(locks), item.nodeid)
        elif self._lease is not None:
            if self._off:
                self._mark_this_process(self._lease.mark, item.nodeid)
            else:
                self._show_here(item, self._lease)

    def _take_over(self, item: pytest.Item) -> Lease | None:
        """Return the lease of the tests before, if this one runs in their process; else end it."""
        if self._kept_for is not item:
            self._give_back()
        self._kept_for = None
        return self._lease

    def _take(self, item: pytest.Item) -> Lease | None:
        """Take the GPUs if the test is to have any and can have them; leave a refusal if not."""
        wish = marks_of(item).gpus
        if not wish or _is_skipped(item):
            return None
        from pytest_cudafork.gpus.locks import LocksUnusable, WaitedTooLong

        try:
            self._lease = self._lender.lend(item.nodeid, wish)
        except Shortage as error:
            item.stash[REFUSAL] = Refusal("skip", str(error))
        except (LocksUnusable, TooMuch, WaitedTooLong) as error:
            item.stash[REFUSAL] = Refusal("fail", str(error))
        else:
            if self._lease.alone:  # those that share have waited for room already
                self._settle(item, self._lease.gpus)
                if REFUSAL in item.stash:
                    self._give_back()
        return self._lease

    def _show_here(self, item: pytest.Item, lease: Lease) -> None:
        """Let this process see the leased GPUs and no other until the test is over."""
        if self._here is not None:  # run again by another plugin
            return
        seen = self._lender.seen_here()
        if seen is not None and set(seen) != set(lease.gpus):
            pytest.fail(
                f"{item.nodeid}: this test is not isolated, and CUDA is initialized in this "
                f"process, where it shows GPUs {names(seen) or 'none'} for good; the test may see "
                f"{names(lease.gpus)} only. Run it isolated (without --pdb, --trace and "
                "--cuda-fork-isolate=none), or alone.",
                pytrace=False,
            )
        self._here = contextlib.ExitStack()
        for name, value in lease.environment.items():
            environment.set_variable(self._here, name, value)

    def _mark_this_process(self, mark: str, test: str) -> None:
        """Let what this process leaves behind be known as the test's."""
        if mark and self._lender.measures:
            from pytest_cudafork.gpus.memory import put_mark

            with contextlib.suppress(OSError):  # out of descriptors: then nobody is blamed
                self._marks.append(put_mark(mark, test))

    def _look_back(self, item: pytest.Item, lease: Lease) -> None:
        """Report the memory that an isolated test left; note what CUDA shows here otherwise."""
        if self._here is not None:
            self._lender.note_seen(lease.gpus)
        elif lease.before is not None:
            from pytest_cudafork.gpus.memory import describe, left_behind
            from pytest_cudafork.isolate.session.children import children_of

            found = left_behind(lease.gpus, lease.before, lease.mark)
            if found:
                _warn(item, describe(found))
                children_of(item.config).end_leftovers()  # the GPUs are the next test's

    def _give_back(self) -> None:
        """End the lease, if there is one; a fork of this process has none to end."""
        if self._off or self._lease is None:
            return
        lease, self._lease = self._lease, None
        if self._here is not None:
            self._here.close()
            self._here = None
        lease.end()


class RefusedTests:
    """The hook that runs a test that gets no GPUs here, though it would be isolated.

    Registered after the one that isolates, so it is asked before it.
    """

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool | None:
        """Let the set-up say why."""
        if REFUSAL not in item.stash:
            return None
        from pytest_cudafork.compat.pytest_internals import run_test_protocol

        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        run_test_protocol(item, nextitem)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True


def _refuse(item: pytest.Item, refusal: Refusal) -> NoReturn:
    """Skip or fail a test for want of GPUs."""
    if refusal.outcome == "skip":
        raise pytest.skip.Exception(refusal.text, _use_item_location=True)
    pytest.fail(f"{item.nodeid}: {refusal.text}", pytrace=False)


def _goes_on_with(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """Whether the next test runs in the process of this one."""
    from pytest_cudafork.isolate.groups import share_process

    return nextitem is not None and share_process(item, nextitem)


def _is_skipped(item: pytest.Item) -> bool:
    """Whether a mark skips the test for certain, so that it need not wait for GPUs.

    Conditions in strings are left to pytest: such a test takes its GPUs and is skipped then.
    """
    if any(item.iter_markers("skip")):
        return True
    conditions = [one for mark in item.iter_markers("skipif") for one in mark.args[:1]]
    return any(one is True for one in conditions)


def _warn(item: pytest.Item, text: str) -> None:
    """Warn in the name of a test that is over, under its filters; an error is a failed teardown."""
    import warnings

    from pytest_cudafork.compat.pytest_internals import catch_warnings
    from pytest_cudafork.errors import CudaForkWarning

    path, line, _ = item.location
    try:
        with catch_warnings(item):
            warnings.warn_explicit(CudaForkWarning(text), None, path, (line or 0) + 1)
    except CudaForkWarning:
        from pytest_cudafork.errors import ChildError
        from pytest_cudafork.isolate.session.failure import report

        failed = report(item, "teardown", ChildError(text), [])
        item.ihook.pytest_runtest_logreport(report=failed)
