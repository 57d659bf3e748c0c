"""What is said where torch is not installed, by all that cannot do without it."""

from __future__ import annotations

NO_TORCH = "torch is not installed"


def torch_is_missing() -> bool:
    """Whether an import would find no torch; imports none."""
    import importlib.util  # late: not every process that is watched has to ask

    try:
        return importlib.util.find_spec("torch") is None
    except ValueError:  # something that was put into sys.modules under that name
        return False


def needs_torch(what: str) -> str:
    """Return the message of what needs torch, with how to get it: "the fixture x needs"."""
    return f'{what} torch, which is not installed: pip install "pytest-cudafork[torch]"'
