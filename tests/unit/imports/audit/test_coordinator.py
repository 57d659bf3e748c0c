"""The answers for all targets of an audit: imported by an auditor, confirmed afresh."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_cudafork.imports.audit.auditor import Auditor
from pytest_cudafork.imports.audit.coordinator import AuditCoordinator
from pytest_cudafork.imports.audit.discover import find_modules
from pytest_cudafork.imports.values.records import ImportVerdict as V
from pytest_cudafork.imports.values.settings import AuditSettings
from pytest_cudafork.imports.values.targets import Target, targets_of
from tests.support.imports import TOUCH, write_package

FILES = {
    "__init__": "",
    "hot": TOUCH,
    "user": "import pkg.hot",
    "either": f"try:\n    import cudafork_lib\nexcept ImportError:\n    {TOUCH}",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    write_package(tmp_path, "pkg", FILES)
    (tmp_path / "cudafork_lib.py").write_text("")
    return tmp_path


@contextlib.contextmanager
def coordinating(*, confirm: bool = True, **settings: Any) -> Iterator[AuditCoordinator]:
    found = {"pkg": find_modules("pkg")}
    made = AuditCoordinator(AuditSettings(**settings), found, confirm=confirm)
    with contextlib.closing(made) as coordinator:
        yield coordinator


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_each_target_has_its_answer_with_and_without_a_library() -> None:
    targets = targets_of({"pkg": find_modules("pkg")}, ["cudafork_lib"])
    with coordinating(jobs=2, confirm=False) as coordinator:
        coordinator.check_hidden(["cudafork_lib"])
        coordinator.expect(targets)
        answers = {target.nodeid: coordinator.answer(target) for target in targets}
        assert coordinator.answer(targets[0]) is answers[targets[0].nodeid]
    touching = {nodeid for nodeid, answer in answers.items() if answer.record.verdict.touched}
    assert touching == {
        "pkg::pkg.hot",
        "pkg::pkg.user",
        "pkg::pkg.hot[without cudafork_lib]",
        "pkg::pkg.user[without cudafork_lib]",
        "pkg::pkg.either[without cudafork_lib]",
    }
    assert {answer.record.confirmed for answer in answers.values()} == {None}


@pytest.mark.usefixtures("folder")
def test_an_interrupt_while_imports_begin_leaves_nothing_behind(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module may be running before the fork server has all of its orders."""
    temporary, ask = tmp_path_factory.mktemp("temporary"), Auditor.ask
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))

    def interrupted(auditor: Auditor, modules: Sequence[str]) -> None:
        ask(auditor, modules)
        assert list(temporary.iterdir())
        raise KeyboardInterrupt

    monkeypatch.setattr(Auditor, "ask", interrupted)
    targets = targets_of({"pkg": find_modules("pkg")})
    with coordinating() as coordinator:
        coordinator.expect(targets)
        with pytest.raises(KeyboardInterrupt):
            coordinator.answer(targets[0])
    assert list(temporary.iterdir()) == []


@pytest.mark.usefixtures("folder")
def test_one_module_of_a_culprit_line_is_confirmed() -> None:
    with coordinating(jobs=2) as coordinator:
        hot, user = Target("pkg", "pkg.hot"), Target("pkg", "pkg.user")
        coordinator.ask([hot, user])
        assert coordinator.answer(hot).record.confirmed is True
        assert coordinator.answer(user).record.confirmed is None
        coordinator.ask([hot])


def test_below_a_package_that_hangs_nothing_is_confirmed(folder: Path) -> None:
    write_package(folder, "pkg", {"slow/__init__": "import time; time.sleep(60)", "slow/a": ""})
    with coordinating(timeout=4.0) as coordinator:
        slow = coordinator.answer(Target("pkg", "pkg.slow")).record
        assert (slow.verdict, slow.confirmed) == (V.TIMED_OUT, True)
        below = coordinator.answer(Target("pkg", "pkg.slow.a")).record
        assert (below.verdict, below.confirmed) == (V.TIMED_OUT, None)


@pytest.mark.usefixtures("folder")
def test_a_library_that_cannot_be_hidden_is_an_error_before_anything_is_imported() -> None:
    with coordinating() as coordinator:
        with pytest.raises(ValueError, match="sys cannot be hidden"):
            coordinator.check_hidden(["cudafork_lib+sys"])
        coordinator.check_hidden([])


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("real", "real driver, 2 at a time"),
        ("none", "no driver, 2 at a time"),
        ("absent", "phantom (no GPU), 2 at a time"),
        ("sm_90", "phantom (sm_90), 2 at a time"),
    ],
)
def test_it_says_what_modules_find(device: str, words: str) -> None:
    with coordinating(device=device, jobs=2) as coordinator:
        assert coordinator.words == words
