"""What ``run`` tells goes where it is to go, whole."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pytest_cudafork.observe.base.ledger import Ledger
from pytest_cudafork.observe.handed_on import WatchSettings
from pytest_cudafork.programs.account import TITLE, Account
from pytest_cudafork.programs.run_report import Ended, account_of, tell


@pytest.fixture
def account(tmp_path: Path) -> Account:
    """The account of a program that was watched and did nothing."""
    ledger = Ledger(str(tmp_path / "ledger"))
    ledger.create()
    ledger.append("process", argv=["python", "x.py"], ppid=1)
    ended = Ended(os.getpid(), ("python", "x.py"), 0, 1.0)
    settings = WatchSettings(ledger.path, "absent", "poison")
    return account_of(ended, settings, {}, [os.getpid()])


def test_the_ledger_is_read(account: Account) -> None:
    assert account.is_good
    assert account.simulated
    assert list(account.deeds.processes.values()) == ["python x.py"]
    ((pid, command),) = account.running
    assert pid == os.getpid()
    assert command


def test_a_report_is_text_or_json(account: Account, tmp_path: Path) -> None:
    report = tmp_path / "report"
    report.write_text("of yesterday, and longer than what follows\n" * 99)
    assert tell(account, str(report), as_json=False)
    assert report.read_text() == account.text()
    assert tell(account, str(report), as_json=True)
    assert json.loads(report.read_text()) == account.as_plain()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["ledger", "report"]


def test_a_link_and_a_device_stay_what_they_are(account: Account, tmp_path: Path) -> None:
    (tmp_path / "real").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert tell(account, str(tmp_path / "link"), as_json=False)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == account.text()
    assert tell(account, os.devnull, as_json=False)
    assert not os.path.isfile(os.devnull)


def test_what_cannot_be_written_is_told_all_the_same(
    account: Account, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not tell(account, str(tmp_path / "no" / "r"), as_json=True)
    said = capsys.readouterr().err
    assert "the report cannot be written: " in said
    assert TITLE in said


def test_without_a_report_it_is_stderr(
    account: Account, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tell(account, "", as_json=False)
    assert capsys.readouterr().err == f"\n{account.text()}"
    monkeypatch.setattr("sys.stderr", None)
    assert tell(account, "", as_json=False)  # nobody to tell
