"""Tests of whose ``--forked`` and the marker ``forked`` are."""

from __future__ import annotations

import argparse
from types import SimpleNamespace
from typing import Any

import pytest
from _pytest.config.argparsing import Parser

from pytest_cudafork.compat.plugins.forked import CLAIM, Claim
from pytest_cudafork.isolate.session import forked_option


@pytest.mark.parametrize(
    ("peer_loaded", "flag", "isolate", "claim"),
    [
        (False, False, None, Claim(ours=True, every_test=False)),
        (False, True, None, Claim(ours=True, every_test=True)),
        (False, True, "none", Claim(ours=True, every_test=True)),
        (True, False, None, Claim(ours=True, every_test=False)),
        (True, True, None, Claim(ours=True, every_test=False)),
        (True, True, "fork", Claim(ours=True, every_test=True)),
        (True, False, "fork", Claim(ours=True, every_test=False)),
        (True, True, "none", Claim(ours=False, every_test=False)),
    ],
)
def test_the_marker_is_ours_and_the_option_theirs_unless_somebody_asks_for_us(
    peer_loaded: bool, flag: bool, isolate: str | None, claim: Claim
) -> None:
    assert forked_option.decide(peer_loaded=peer_loaded, flag=flag, isolate=isolate) == claim


def parsed(parser: Parser, *args: str) -> argparse.Namespace:
    """Return what a command line means to a parser."""
    return parser.parse_known_args(list(args), namespace=argparse.Namespace())


def test_the_option_is_offered_where_nobody_has_it() -> None:
    parser = Parser(_ispytest=True)
    forked_option.offer_option(parser)
    assert parsed(parser, "--forked").forked is True
    assert parsed(parser).forked is False


@pytest.mark.parametrize("action", ["store_true", "store"])
def test_an_option_that_somebody_has_is_left_to_them(action: str) -> None:
    parser = Parser(_ispytest=True)
    parser.addoption("--forked", action=action, dest="theirs")
    forked_option.offer_option(parser)
    assert not hasattr(parsed(parser), "forked")


class _Session:
    """A configuration of a session with or without pytest-forked."""

    def __init__(self, *, peer: bool, flag: object) -> None:
        self.peer = peer
        self.lines: list[tuple[str, str]] = []
        self.stash = pytest.Stash()
        self.option = SimpleNamespace() if flag is None else SimpleNamespace(forked=flag)
        self.pluginmanager = self

    def has_plugin(self, name: str) -> bool:
        assert name == "pytest_forked"
        return self.peer

    def unregister(self, *, name: str) -> None:
        assert name == "pytest_forked"
        self.peer = False

    def addinivalue_line(self, name: str, line: str) -> None:
        self.lines.append((name, line))

    def begin(self, isolate: str | None) -> str | None:
        config: Any = self
        return forked_option.begin(config, isolate)


@pytest.mark.parametrize(
    ("flag", "isolate", "method", "every_test"),
    [
        (None, None, None, False),
        (False, None, None, False),
        (True, None, "auto", True),
        (True, "spawn", "spawn", True),
        (True, "none", "none", True),
        ("a value", None, None, False),
    ],
)
def test_without_pytest_forked_the_option_isolates_every_test(
    flag: object, isolate: str | None, method: str | None, every_test: bool
) -> None:
    session = _Session(peer=False, flag=flag)
    assert session.begin(isolate) == method
    assert session.stash[CLAIM] == Claim(ours=True, every_test=every_test)
    ((name, line),) = session.lines
    assert name == "markers"
    assert line.startswith("forked(): ")


@pytest.mark.parametrize("isolate", [None, "none"])
def test_pytest_forked_keeps_its_option(isolate: str | None) -> None:
    session = _Session(peer=True, flag=True)
    assert session.begin(isolate) == isolate
    assert session.stash[CLAIM] == Claim(ours=isolate is None, every_test=False)
    assert session.peer
    assert session.lines == []


def test_pytest_forked_is_taken_off_where_its_option_is_not_given() -> None:
    session = _Session(peer=True, flag=False)
    assert session.begin(None) is None
    assert session.stash[CLAIM] == Claim(ours=True, every_test=False)
    assert not session.peer


def test_pytest_forked_is_taken_off_where_we_isolate_every_test() -> None:
    session = _Session(peer=True, flag=True)
    assert session.begin("fork") == "fork"
    assert session.stash[CLAIM] == Claim(ours=True, every_test=True)
    assert not session.peer


@pytest.mark.parametrize(
    ("peer", "flag", "isolate", "told"),
    [
        (True, True, None, True),
        (True, True, "fork", False),
        (True, True, "none", False),
        (True, False, None, False),
        (False, True, None, False),
    ],
)
def test_the_header_says_where_pytest_forked_has_the_option(
    peer: bool, flag: bool, isolate: str | None, told: bool
) -> None:
    session: Any = _Session(peer=peer, flag=flag)
    session.begin(isolate)
    lines = forked_option.header(session)
    assert ["-p no:pytest_forked" in line for line in lines] == ([True] if told else [])
