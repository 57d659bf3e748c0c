"""The plugin's options: the table, and the frozen settings that they become.

An option is a row in ``PARSERS``: its names and help, and what reads its text. Those of the import
audit stand in ``import_options.py``.
"""

import contextlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from pytest_cudafork.settings import Level
from pytest_cudafork.settings.devices import Device, DeviceKind, parse_device
from pytest_cudafork.settings.import_options import IMPORT_OPTIONS, read_imports
from pytest_cudafork.settings.import_options import PARSERS as IMPORT_PARSERS
from pytest_cudafork.settings.import_settings import ImportSettings
from pytest_cudafork.settings.markers import DEFAULT_TIMEOUT
from pytest_cudafork.settings.option import Option, Table, parse_file, parse_modules, read_table
from pytest_cudafork.settings.option_texts import (
    parse_captures,
    parse_expected,
    parse_gib,
    parse_github,
    parse_gpus,
    parse_graphs,
    parse_health,
    parse_isolate,
    parse_kinds,
    parse_level,
    parse_limit,
    parse_marker_map,
    parse_profile,
    parse_scope,
    parse_update,
)

if TYPE_CHECKING:
    from pytest_cudafork.settings.gpu_requests import GpuChoice
    from pytest_cudafork.settings.marker_map import MarkerMap


# Annotations of this module are no texts: NamedTuple compiles each, while the plugin is imported.
class Settings(NamedTuple):
    """What the options say, all sources taken together."""

    level: Level = Level.OFF
    device: Device = Device()
    allow: tuple[str, ...] = ()
    ledger: str = ""
    baseline: str = ""
    """The file of what the check accepts, or ""."""
    baseline_update: str = ""
    """Whether to change that file: "all", "shrink", or ""."""
    marker_map: "MarkerMap | None" = None
    """How markers of the suite are read; None: as what they are."""
    expect_gpus: int | None = None
    """The GPUs that the session is promised; None: nothing was said."""
    intent: tuple[str, ...] = ()
    """The kinds of tests not run as meant that are errors, "all" included."""
    isolate: str | None = None
    """A method for every test, "none" for no isolation at all, None: as the markers say."""
    isolate_timeout: float = DEFAULT_TIMEOUT
    """Seconds after which an isolated test is ended, where its marker names no limit."""
    isolate_scope: str | None = None
    """Which isolated tests share a process, where their markers do not say; None: none do."""
    health: str | None = None
    """What becomes of the tests after one that has left the GPU sick: "fail", "recover", or "off"
    for no question after tests; None: only processes that isolated tests share are asked."""
    gpus: "GpuChoice | None" = None
    """The GPUs that tests may use; None: all."""
    imports: ImportSettings = ImportSettings()
    """The import audit."""
    json: str = ""
    """The file of the session's document, or ""."""
    sarif: str = ""
    """The file of the problems for code scanning, or ""."""
    trace: str = ""
    """The file of the trace, or ""."""
    html: str = ""
    """The page of the session, or ""."""
    github: tuple[str, ...] = ()
    """What to write where GitHub Actions runs the session."""
    settle: int | None = None
    """Bytes that may be in use on a GPU beyond what was when the session began; None: any."""
    profile: str = ""
    """The file to which memory, time and GPUs of each test go; "": none."""
    pack: str = ""
    """Such a file, by which tests are given GPUs and put in order; "": none."""
    graphs: str | None = None
    """How to capture graphs: "auto", "software" or "cuda"; None: nothing was said."""

    captures: str = "off"
    """How captures that tests make are looked at: one of ``CAPTURES``."""

    @property
    def active(self) -> bool:
        """Whether the check is on."""
        return self.level is not Level.OFF

    @property
    def reports(self) -> bool:
        """Whether anything is written for other programs."""
        return bool(self.json or self.sarif or self.trace or self.html or self.github)

    @property
    def tells_times(self) -> bool:
        """Whether anything is written that says when which process did what."""
        return bool(self.json or self.trace or self.html)


MARKER_MAP = Option(
    "cuda_fork_marker_map",
    "LINE",
    "Read markers of the suite as this plugin's, as in 'distributed(num_gpus=n) = gpus(n)' or "
    "'gpu_{n} = gpus(n)'; one a line.",
    lines=True,
)
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
BASELINE = Option(
    "cuda_fork_baseline",
    "FILE",
    "A TOML file of what the check finds today and accepts, by the line that initializes CUDA; all "
    "else fails as ever. Create it with --cuda-fork-baseline-update.",
)
BASELINE_UPDATE = Option(
    "cuda_fork_baseline_update",
    "HOW",
    "Change the baseline at the end of the session. HOW: all (accept what was found, remove what "
    "is gone; the flag alone), shrink (only remove what is gone).",
    flag_value="all",
)
EXPECT_GPUS = Option(
    "cuda_fork_expect_gpus",
    "N",
    "The GPUs that this session is promised: tests that need no more and are skipped are counted. "
    "0 for a session without: tests that see one are counted.",
)
INTENT = Option(
    "cuda_fork_intent",
    "KINDS",
    "Fail tests that do not run as they were meant to. KINDS: spawned (wanted fork, ran spawn), "
    "gpu-skipped, gpu-seen (see --cuda-fork-expect-gpus), separated by commas; all (the flag "
    "alone).",
    flag_value="all",
    lines=True,
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
ISOLATION_SCOPE = Option(
    "cuda_fork_isolate_scope",
    "SCOPE",
    "Which isolated tests share a process. SCOPE: test (default: none do), class (those of a class "
    "that follow each other), module (those of a file). cuda_isolated(scope=...) on a test wins.",
)
GPUS = Option(
    "cuda_fork_gpus",
    "GPUS",
    "The GPUs that tests marked gpus(n) may use: auto (default: all), a number of them as in "
    "2, or a list of numbers or UUIDs as in 0,2 ('2,' is GPU 2 alone). CUDA_VISIBLE_DEVICES "
    "limits them further.",
)
GPU_HEALTH = Option(
    "cuda_fork_health",
    "MODE",
    "Ask the CUDA driver after each test whether the GPU is well, and fail the first test that has "
    "left it sick. MODE: fail (the tests after it in its process are not run; the flag alone), "
    "recover (they run in a fresh process), off.",
    flag_value="fail",
)
GRAPH_BACKEND = Option(
    "cuda_fork_graphs",
    "BACKEND",
    "How tests capture graphs: auto (default: real ones where there is a GPU, else software), "
    "software, cuda. Tests marked graph_capture(backends=...) run on each backend that they "
    "name and that this allows.",
)
CAPTURES = Option(
    "cuda_fork_captures",
    "HOW",
    "Look at every graph that tests capture and replay, and fail those whose graphs read what is "
    "freed, never filled or out of date. HOW: check (the flag alone), all (check, and keep how all "
    "memory came about, not only what was computed from whole numbers), audit (list tests that "
    "replay a graph and pass whatever it does), off.",
    flag_value="check",
)
SETTLE = Option(
    "cuda_fork_settle",
    "GIB",
    "Before a test, wait until the memory of its GPUs is back: no more than GIB (the flag alone: "
    "1) above what was in use at the start. What tests left behind is ended; else the test fails.",
    flag_value="1",
)
PROFILE = Option(
    "cuda_fork_profile",
    "FILE",
    "Record time, RAM and memory of GPUs of each test; the summary shows the largest.",
)
PACK = Option(
    "cuda_fork_pack",
    "FILE",
    "Let tests share GPUs by what FILE, of --cuda-fork-profile, says of them, in a good order.",
)
JSON = Option(
    "cuda_fork_json",
    "FILE",
    "Write the session as JSON: tests with their isolation, touches, forks, findings, the audit. "
    "The form is that of all JSON of this package, and has a schema.",
)
SARIF = Option(
    "cuda_fork_sarif",
    "FILE",
    "Write the findings as SARIF 2.1.0, which code scanning takes.",
)
TRACE = Option(
    "cuda_fork_trace",
    "FILE",
    "Write when which process did what as a trace, which Perfetto and chrome://tracing draw: "
    "tests, isolated ones in rows of their own, touches, forks, leases of GPUs.",
)
HTML = Option(
    "cuda_fork_html",
    "FILE",
    "Write the session as one page of HTML that needs no network: tests, timeline of processes, "
    "touches, imports, captures, what isolation cost. Needs Jinja2: pytest-cudafork[html].",
)
GITHUB = Option(
    "cuda_fork_github",
    "WHAT",
    "In GitHub Actions, show the findings. WHAT: annotations (beside the lines of the change), "
    "summary (on the page of the run), separated by commas; all (the flag alone), off. Elsewhere "
    "it does nothing.",
    flag_value="all",
)
OPTIONS = (
    *(CHECK, DEVICE, ALLOW, LEDGER, BASELINE, BASELINE_UPDATE),
    *(MARKER_MAP, EXPECT_GPUS, INTENT, ISOLATION, ISOLATION_TIMEOUT, ISOLATION_SCOPE),
    *(GPU_HEALTH, GPUS, SETTLE, PROFILE, PACK, GRAPH_BACKEND, CAPTURES),
    *(JSON, SARIF, TRACE, HTML, GITHUB),
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

    Raises:
        pytest.UsageError: a value follows such a flag, which would be taken for a path.

    """
    bare = {option.flag: (option, parse) for option, parse in _ROWS if option.flag_value}
    changed = False
    for index, arg in enumerate(args):
        if arg == "--":
            break
        if arg in bare:
            option, parse = bare[arg]
            if "--pyargs" not in args:  # the next one may be a module
                _check_no_value(arg, parse, args[index + 1 : index + 2])
            args[index] = f"{arg}={option.flag_value}"
            changed = True
    return changed


def _check_no_value(flag: str, parse: Callable[[str], Any], following: list[str]) -> None:
    """Check that what follows a bare flag is not meant as its value.

    Raises:
        pytest.UsageError: it is a value of that option, and no file.

    """
    for text in following:
        with contextlib.suppress(ValueError):
            if text[:1] not in ("", "-") and not os.path.exists(text):
                parse(text)
                raise pytest.UsageError(
                    f"{flag} {text}: a value follows after '=': write {flag}={text}"
                )


def read_settings(config: pytest.Config, namespace: Any, *, elsewhere: bool = False) -> Settings:
    """Merge all sources.

    Args:
        config: for the ini file.
        namespace: the parsed command line, where an option that was not given is None.
        elsewhere: whether this is a worker, maybe on another host: the controller has checked what
            goes together, and writes the files, whose folders need not be here.

    Raises:
        pytest.UsageError: a value is not one of those allowed, and the message names its source;
            or a baseline is to be written and none is named, or nothing is checked; or the command
            line has what only the check uses, and nothing says anything of the check.

    """
    values = read_table(config, namespace, PARSERS)
    settings = Settings(**values, imports=read_imports(config, namespace, elsewhere=elsewhere))
    if elsewhere:
        return settings
    if settings.reports or settings.imports.graph:
        from pytest_cudafork.settings.report_options import checked

        settings = checked(settings, namespace)
    if settings.baseline_update and not settings.baseline:
        raise pytest.UsageError(
            f"{BASELINE_UPDATE.flag}: there is no file to write: name it with {BASELINE.flag}=FILE"
        )
    if settings.baseline_update and not settings.active and not settings.intent:
        raise pytest.UsageError(
            f"{BASELINE_UPDATE.flag}: nothing is checked, so nothing is found: add {CHECK.flag}"
        )
    if "level" not in values:  # whoever has said "off" knows that nothing is checked
        _check_used(settings, namespace)
    if settings.intent:
        from pytest_cudafork.settings import intent

        try:
            intent.check(settings.intent, settings.expect_gpus, checked=settings.active)
        except ValueError as error:
            raise pytest.UsageError(f"{INTENT.flag}: {error}") from None
    return settings


def _check_used(settings: Settings, namespace: Any) -> None:
    """Check that the command line has nothing that is in vain without the check.

    In the environment and the ini file it waits for sessions that have the check.

    Raises:
        pytest.UsageError: it has.

    """
    shows = settings.device.kind in (DeviceKind.PHANTOM, DeviceKind.REAL)
    counts = settings.intent or settings.expect_gpus is not None
    in_vain = (
        (BASELINE, settings.baseline and not counts, "is not read"),
        (DEVICE, shows and not settings.imports.packages, "is not shown to any test"),
        (LEDGER, True, "is not written"),
        (ALLOW, True, "is allowed nothing"),
    )
    for option, unused, words in in_vain:
        text = getattr(namespace, option.name, None)
        if text and unused:
            raise pytest.UsageError(
                f"{option.flag}: nothing is checked, so {text} {words}: add {CHECK.flag}"
                f" ({CHECK.flag}=off: leave it so). In the ini file, {option.name} waits for it"
            )


PARSERS: Table = {
    "level": (CHECK, parse_level),
    "device": (DEVICE, parse_device),
    "allow": (ALLOW, parse_modules),
    "ledger": (LEDGER, parse_file),
    "baseline": (BASELINE, parse_file),
    "baseline_update": (BASELINE_UPDATE, parse_update),
    "marker_map": (MARKER_MAP, parse_marker_map),
    "expect_gpus": (EXPECT_GPUS, parse_expected),
    "intent": (INTENT, parse_kinds),
    "isolate": (ISOLATION, parse_isolate),
    "isolate_timeout": (ISOLATION_TIMEOUT, parse_limit),
    "isolate_scope": (ISOLATION_SCOPE, parse_scope),
    "health": (GPU_HEALTH, parse_health),
    "gpus": (GPUS, parse_gpus),
    "settle": (SETTLE, parse_gib),
    "profile": (PROFILE, parse_profile),
    "pack": (PACK, parse_profile),
    "graphs": (GRAPH_BACKEND, parse_graphs),
    "json": (JSON, parse_profile),
    "sarif": (SARIF, parse_profile),
    "trace": (TRACE, parse_profile),
    "html": (HTML, parse_profile),
    "github": (GITHUB, parse_github),
    "captures": (CAPTURES, parse_captures),
}
"""The options by the field of ``Settings`` that holds their value."""

_ROWS = (*PARSERS.values(), *IMPORT_PARSERS.values())
