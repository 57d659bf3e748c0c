"""What replaces pytest-forked: ``--forked``, the marker ``forked``, and whose they are.

The marker is this plugin's, wherever it is loaded. pytest-forked, where that is loaded, keeps its
option, unless the session asks for this plugin (see ``decide``).
"""

from __future__ import annotations

import pytest

from pytest_cudafork.compat.plugins.forked import CLAIM, PEER, Claim

FLAG = "--forked"
DEST = "forked"

_DOC = "forked(): run the test in a process of its own, as pytest-forked does."
_HELP = (
    "Run every test in a process of its own, as pytest-forked does: in a fork of the pytest "
    "process while that is safe, else in a fork of a clean one."
)


def decide(*, peer_loaded: bool, flag: bool, isolate: str | None) -> Claim:
    """Decide whose the option and the marker are. Pure.

    Args:
        peer_loaded: pytest-forked is loaded in this session.
        flag: ``--forked`` is given, to whomever.
        isolate: the session's method of isolation; "none" wants nothing of this plugin.

    """
    if not peer_loaded:
        return Claim(True, every_test=flag)
    asked = isolate not in (None, "none")
    return Claim(isolate != "none", every_test=asked and flag)


def offer_option(parser: pytest.Parser) -> None:
    """Register ``--forked`` unless somebody has; to be called when all plugins are loaded.

    In ``pytest_addoption`` it would be too early: pytest-forked may come later, and its own
    ``--forked`` would then break the session.
    """
    if not _is_taken(parser):
        group = parser.getgroup("cuda-fork", "CUDA and fork (pytest-cudafork)")
        group.addoption(FLAG, action="store_true", dest=DEST, default=False, help=_HELP)


def _is_taken(parser: pytest.Parser) -> bool:
    """Whether the command line knows the option, asked of the parser itself."""
    import argparse

    try:
        _, unknown = parser.parse_known_and_unknown_args([FLAG], namespace=argparse.Namespace())
    except pytest.UsageError:  # it is known and wants a value, or options clash already
        return True
    return FLAG not in unknown


def begin(config: pytest.Config, isolate: str | None) -> str | None:
    """Settle whose the option and the marker are, and tell pytest about the marker.

    Args:
        config: the configuration, its plugins loaded and its command line read.
        isolate: the session's method of isolation, "none" included; None if it names none.

    Returns:
        The session's method with ``--forked`` taken into account.

    """
    manager = config.pluginmanager
    peer_loaded = bool(manager.has_plugin(PEER))
    flag = getattr(config.option, DEST, False) is True
    claim = decide(peer_loaded=peer_loaded, flag=flag, isolate=isolate)
    config.stash[CLAIM] = claim
    if not peer_loaded:
        config.addinivalue_line("markers", _DOC)
    elif claim.ours and claim.every_test == flag:  # nothing is left for it to do
        manager.unregister(name=PEER)  # it would fork once more, in the child
    return "auto" if claim.every_test and isolate is None else isolate


def header(config: pytest.Config) -> list[str]:
    """Say so where the option is given, and pytest-forked has it."""
    given = getattr(config.option, DEST, False) is True
    claim = config.stash[CLAIM]
    if not given or not claim.ours or claim.every_test or not config.pluginmanager.has_plugin(PEER):
        return []
    return [
        f"cuda-fork: {FLAG} is pytest-forked's, which is loaded, too; for this plugin's add -p "
        "no:pytest_forked, or uninstall pytest-forked"
    ]
