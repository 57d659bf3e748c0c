"""The plugin's options: the table, and the frozen settings that they become.

An option is a row in ``PARSERS``: its names and help, and what reads its text. Those of the import
audit stand in ``import_options.py``.
"""

from __future__ import annotations

import enum
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from pytest_cudafork.settings import AUTO, GRAPH_BACKENDS, METHODS, NONE
from pytest_cudafork.settings.devices import Device, parse_device
from pytest_cudafork.settings.import_options import IMPORT_OPTIONS, read_imports
from pytest_cudafork.settings.import_settings import ImportSettings
from pytest_cudafork.settings.markers import DEFAULT_TIMEOUT
from pytest_cudafork.settings.option import Option, Table, parse_file, parse_modules, read_table

if TYPE_CHECKING:
    from pytest_cudafork.settings.gpu_requests import GpuChoice


class Level(enum.Enum):
    """What ``--cuda-fork-check`` treats as an error."""

    OFF = "off"
    POISON = "poison"
    FORK = "fork"
    TOUCH = "touch"


GRAPHS = (AUTO, *GRAPH_BACKENDS)
"""What ``--cuda-fork-graphs`` takes."""
ISOLATE = (NONE, *METHODS, AUTO)
"""What ``--cuda-fork-isolate`` takes."""


class Settings(NamedTuple):
    """What the options say, all sources taken together."""

    level: Level = Level.OFF
    device: Device = Device()
    allow: tuple[str, ...] = ()
    ledger: str = ""
    isolate: str | None = None
    """A method for every test, "none" for no isolation at all, None: as the markers say."""
    isolate_timeout: float = DEFAULT_TIMEOUT
    """Seconds after which an isolated test is ended, where its marker names no limit."""
    gpus: GpuChoice | None = None
    """The GPUs that tests may use; None: all."""
    imports: ImportSettings = ImportSettings()
    """The import audit."""
    settle: int | None = None
    """Bytes that may be in use on a GPU beyond what was when the session began; None: any."""
    graphs: str | None = None
    """How to capture graphs: "auto", "software" or "cuda"; None: nothing was said."""

    @property
    def active(self) -> bool:
        """Whether the check is on."""
        return self.level is not Level.OFF


CHECK = Option(
    "cuda_fork_check",
    "LEVEL",
    "Fail on CUDA use that breaks forks. LEVEL: poison (a child forked from an initialized "
    "process touches CUDA), fork (also: forking at all while CUDA is initialized; the flag "
    "alone), touch (also: any touch in the pytest process), off.",
    flag_value="fork",
)
DEVICE = Option(
    "cuda_fork_device",
    "DEVICE",
    "The driver to see: auto (default: real where there is one, else phantom), real, phantom "
    "(records, answers 'no device'), phantom:sm_90 or phantom:sm_90x2 (answers as if GPUs were "
    "there), none.",
)
ALLOW = Option(
    "cuda_fork_allow",
    "MODULE",
    "Modules whose forks are watched but never refused, beside torch.utils.data; separated by "
    "commas, in the ini file one a line.",
    lines=True,
)
LEDGER = Option(
    "cuda_fork_ledger",
    "FILE",
    "Keep the record of all touches and forks here, one JSON object a line "
    "(default: a temporary file).",
)
ISOLATION = Option(
    "cuda_fork_isolate",
    "METHOD",
    "Run every test in a process of its own. METHOD: fork (of the pytest process), forkserver "
    "(of a clean process that has imported the tests), spawn (a fresh interpreter), auto (the "
    "cheapest that is safe for the test), none (isolate nothing, whatever the markers say). A "
    "marker on a test beats fork, forkserver, spawn and auto.",
)
ISOLATION_TIMEOUT = Option(
    "cuda_fork_isolate_timeout",
    "SECONDS",
    "How long an isolated test may take before it is ended with its stacks (default: "
    f"{DEFAULT_TIMEOUT:.0f}; inf: for ever). cuda_isolated(timeout=...) on a test wins.",
)
GPUS = Option(
    "cuda_fork_gpus",
    "GPUS",
    "The GPUs that tests marked gpus(n) may use: auto (default: all), a number of them as in "
    "2, or a list of numbers or UUIDs as in 0,2 ('2,' is GPU 2 alone). CUDA_VISIBLE_DEVICES "
    "limits them further.",
)
GRAPH_BACKEND = Option(
    "cuda_fork_graphs",
    "BACKEND",
    "How tests capture graphs: auto (default: real ones where there is a GPU, else software), "
    "software, cuda. Tests marked graph_capture(backends=...) run on each backend that they "
    "name and that this allows.",
)
SETTLE = Option(
    "cuda_fork_settle",
    "GIB",
    "Before a test, wait until the memory of the GPUs that it may use is back: no more than GIB "
    "(the flag alone: 1) above what was in use when the session began. What tests left behind is "
    "ended; if the memory is not back then, the test fails and names who holds it.",
    flag_value="1",
)
OPTIONS = (
    *(CHECK, DEVICE, ALLOW, LEDGER, ISOLATION, ISOLATION_TIMEOUT, GPUS, SETTLE, GRAPH_BACKEND),
    *IMPORT_OPTIONS,
)


def add_options(parser: pytest.Parser) -> None:
    """Register the table with pytest."""
    group = parser.getgroup("cuda-fork", "CUDA and fork (pytest-cudafork)")
    for option in OPTIONS:
        extra: dict[str, Any] = {"nargs": "?", "const": option.flag_value}
        group.addoption(
            option.flag,
            dest=option.name,
            metavar=option.metavar,
            default=None,
            help=option.help,
            **(extra if option.flag_value else {}),
        )
        text = f"{option.help} Environment: {option.env}."
        if option.lines:
            parser.addini(option.name, text, type="linelist", default=[])
        else:
            parser.addini(option.name, text, type="string", default="")


def spell_out_flags(args: list[str]) -> bool:
    """Give every bare flag its value, in place: ``--cuda-fork-check`` becomes ``...=fork``.

    Otherwise argparse takes the path that follows for the level, and
    ``pytest --cuda-fork-check tests`` collects nothing it was asked to. Returns whether anything
    was changed.
    """
    bare = {option.flag: option.flag_value for option in OPTIONS if option.flag_value}
    changed = False
    for index, arg in enumerate(args):
        if arg == "--":
            break
        if arg in bare:
            args[index] = f"{arg}={bare[arg]}"
            changed = True
    return changed


def read_settings(config: pytest.Config, namespace: Any) -> Settings:
    """Merge all sources.

    Args:
        config: for the ini file.
        namespace: the parsed command line, where an option that was not given is None.

    Raises:
        pytest.UsageError: a value is not one of those allowed; the message names its source.

    """
    values = read_table(config, namespace, PARSERS)
    return Settings(**values, imports=read_imports(config, namespace))


def parse_level(text: str) -> Level:
    """Read a level.

    Raises:
        ValueError: it is none of them.

    """
    try:
        return Level(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is not a level: use {', '.join(level.value for level in Level)}"
        ) from None


def parse_isolate(text: str) -> str:
    """Read a method of isolation.

    Raises:
        ValueError: it is none of them.

    """
    if text not in ISOLATE:
        raise ValueError(f"{text!r} is not a method: use {', '.join(ISOLATE)}")
    return text


def parse_limit(text: str) -> float:
    """Read a time limit in seconds; infinity stands for none.

    Raises:
        ValueError: it is not a number above 0.

    """
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise ValueError(
            f"{text!r} is not a time limit: use a number of seconds above 0, or inf for none"
        )
    return seconds


def parse_graphs(text: str) -> str:
    """Read how graphs are captured.

    Raises:
        ValueError: there is no such backend.

    """
    if text not in GRAPHS:
        raise ValueError(f"{text!r} is not a way to capture graphs: use {', '.join(GRAPHS)}")
    return text


def parse_gpus(text: str) -> GpuChoice:
    """Read which GPUs may be used.

    Raises:
        ValueError: it is no such text.

    """
    from pytest_cudafork.settings import gpu_requests

    return gpu_requests.parse_gpus(text)


def parse_gib(text: str) -> int:
    """Read a number of GiB; returns bytes.

    Raises:
        ValueError: it is none.

    """
    try:
        gib = float(text)
    except ValueError:
        gib = math.nan
    if not 0 <= gib < math.inf:
        raise ValueError(f"{text!r} is not a number of GiB, as in 1 or 0.5")
    return int(gib * (1 << 30))


PARSERS: Table = {
    "level": (CHECK, parse_level),
    "device": (DEVICE, parse_device),
    "allow": (ALLOW, parse_modules),
    "ledger": (LEDGER, parse_file),
    "isolate": (ISOLATION, parse_isolate),
    "isolate_timeout": (ISOLATION_TIMEOUT, parse_limit),
    "gpus": (GPUS, parse_gpus),
    "settle": (SETTLE, parse_gib),
    "graphs": (GRAPH_BACKEND, parse_graphs),
}
"""The options by the field of ``Settings`` that holds their value."""
