"""``python -m pytest_cudafork imports``: its arguments, its progress line, its exit status.

The options are those of pytest, without the prefix ``--cuda-fork-imports-``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from typing import TextIO

from pytest_cudafork.compat.pytest_internals import terminal_writer
from pytest_cudafork.documents.writing import json_text, printable, write_at_once
from pytest_cudafork.imports.api import run
from pytest_cudafork.imports.audit import plan
from pytest_cudafork.imports.audit.baseline import SHELL_UPDATE_OPTION, Baseline
from pytest_cudafork.imports.audit.discover import UnknownPackage
from pytest_cudafork.imports.report import fail_on
from pytest_cudafork.imports.report.document import audit_document, audit_problems
from pytest_cudafork.imports.report.findings import Findings
from pytest_cudafork.imports.report.preload import preload_lines
from pytest_cudafork.imports.report.story import story_lines
from pytest_cudafork.imports.report.summary import Line, summary_lines, write_results
from pytest_cudafork.imports.since.change_audit import ChangeAudit
from pytest_cudafork.imports.values.records import Outcome
from pytest_cudafork.imports.values.targets import Target
from pytest_cudafork.settings import devices, environment, import_options, option
from pytest_cudafork.settings.arguments import check_new_files
from pytest_cudafork.settings.import_settings import ImportSettings
from pytest_cudafork.settings.option import typed

CLEAN, TOUCHES, USAGE = 0, 1, 2
_WORDS = {
    fail_on.GOOD: "good",
    fail_on.BAD: "bad",
    fail_on.SKIP: "cannot be judged here",
}


def main(args: Sequence[str]) -> int:
    """Audit packages and print what was found.

    Args:
        args: What follows ``python -m pytest_cudafork imports``.

    Returns:
        0: every module is clean, skipped or accepted. 1: one is not. 2: the arguments are wrong, or
        something could not be observed. With ``--fail-on`` what ``git bisect run`` goes by: 0,
        1, 125 where a commit cannot be judged, 129 where the command is wrong.

    """
    if not any(arg.startswith("--fail-on") for arg in args):
        return _run(args)
    with contextlib.ExitStack() as undo:
        # Two commits may be checked out in the same second: Python takes a compiled file by the
        # time and the size of its source, and would take the other commit's.
        environment.set_variable(undo, environment.NO_BYTECODE, "1")
        try:
            status = _run(args)
        except SystemExit as wrong:
            status = int(wrong.code or 0)
        except Exception:  # as Python ends then, the commit would count as bad
            traceback.print_exc()
            status = USAGE
    return fail_on.ABORT if status == USAGE else status


def _run(args: Sequence[str]) -> int:
    parser = _parser()
    given = parser.parse_args(args)
    _check_files(parser, given)
    if given.fail_on is not None and given.update:
        parser.error("--fail-on judges a commit, and --update accepts what is there: use one")
    for flag in ("fail_on", "preload") if _settings(given).since else ():
        if getattr(given, flag):
            name = flag.replace("_", "-")
            parser.error(f"--{name} needs all imports, --since leaves some out: use one")
    try:
        with plan.usage_errors(), _stoppable():
            findings = _audit(given)
    except (ValueError, RuntimeError) as error:
        if given.fail_on is not None and isinstance(error, UnknownPackage):
            _print(Line(f"{given.fail_on}: cannot be judged here: {error}", "warn"))
            return fail_on.SKIP
        parser.exit(USAGE, f"{parser.prog}: error: {_own_words(str(error))}\n")
    except KeyboardInterrupt as stop:
        sys.stderr.write("interrupted\n")
        return 128 + (stop.args[0] if stop.args else signal.SIGINT)
    written = [
        *_write_json(given.json, findings),
        *_write_sarif(given.sarif, findings),
        *write_results(findings),
    ]
    _show(findings, written, full=given.verbose)
    if given.preload:
        _print(Line(""), *preload_lines(findings, full=given.verbose))
    if given.fail_on is not None and not any(line.tone == "bad" for line in written):
        answer = fail_on.judge(findings, given.fail_on)
        _print(Line(f"{given.fail_on}: {_WORDS[answer.status]}: {answer.why}"))
        return answer.status
    outcomes = {findings.outcome(record) for record in findings.records}
    if Outcome.ERROR in outcomes or any(line.tone == "bad" for line in written):
        return USAGE
    return TOUCHES if Outcome.FAILED in outcomes else CLEAN


def _check_files(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    """End with a usage error, before the audit, where a file of its results cannot be written."""
    files = [(f"--{name}", getattr(given, name, "")) for name in ("json", "sarif", "graph")]
    try:
        check_new_files(files, {"--baseline": getattr(given, "baseline", "")})
    except ValueError as error:
        parser.error(str(error))


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """Let SIGTERM end the audit as an interrupt does, so that nothing is left behind."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt(number)

    here = threading.current_thread() is threading.main_thread()
    if not here or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pytest_cudafork imports",
        description="Import every module of a package in a process of its own, and say which "
        "initialize CUDA. Exit status: 0 if none does, crashes or takes too long (one that cannot "
        "be imported counts with --strict only, one in the baseline does not), 1 if one does, 2 on "
        "wrong usage or where something could not be observed. With --fail-on the statuses are "
        "those of `git bisect run`.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "packages",
        metavar="PKG",
        type=typed(option.parse_modules),
        help="separated by commas",
    )
    for each in import_options.IMPORT_OPTIONS:
        if each is not import_options.PACKAGES:
            _add(parser, each)
    add("--device", metavar="DEVICE", type=typed(devices.parse_device), default=devices.Device(),
        help="auto (default), real, phantom, or phantom:sm_90x2")  # fmt: skip
    add("--no-confirm", action="store_true", help="Ask no fresh interpreter.")
    add("--preload", action="store_true",
        help="Say which modules a process may import that is forked afterwards: those that leave "
        "no thread, with the descriptors they leave open and the variables of the environment "
        "they read. Takes longer: most modules are imported with all that they need.")  # fmt: skip
    add("--json", metavar="FILE", default="", help="Write what was found here, as JSON.")
    add("--sarif", metavar="FILE", default="",
        help="Write the problems here, as code scanning takes them.")  # fmt: skip
    add("--fail-on", metavar="FILE[::SCOPE]|any", type=typed(fail_on.parse_place),
        help="For `git bisect run`: exit status 1 if CUDA is initialized there (or anywhere), 0 if "
        "not, 125 if that cannot be judged, 129 if the command is wrong.")  # fmt: skip
    add("-v", "--verbose", action="store_true",
        help="Tell every module that is not clean in full, and leave no name out.")  # fmt: skip
    return parser


def _own_words(text: str) -> str:
    """Call an option as it is called here, where a message has the name it has in pytest."""
    return text.replace("--cuda-fork-imports-", "--").replace("--cuda-fork-device", "--device")


def _add(parser: argparse.ArgumentParser, each: option.Option) -> None:
    name = each.name.removeprefix("cuda_fork_imports_")
    flag, text = f"--{name}", each.help.replace("%", "%%")
    if each.flag_value:
        parser.add_argument(flag, action="store_true", dest=name, help=text)
    else:
        parse = typed(import_options.PARSERS[name][1])
        # what is not given is not there: argparse would read a default as if it were typed
        absent = argparse.SUPPRESS
        parser.add_argument(
            flag, metavar=each.metavar, dest=name, type=parse, default=absent, help=text
        )


def _settings(given: argparse.Namespace) -> ImportSettings:
    values = vars(given)
    return ImportSettings(
        **{name: values[name] for name in ImportSettings._fields if name in values}
    )


def _audit(given: argparse.Namespace) -> Findings:
    imports = _settings(given)
    import_options.check(imports, SHELL_UPDATE_OPTION, "--baseline")
    baseline = Baseline()
    if imports.baseline and (not imports.update or os.path.exists(imports.baseline)):
        baseline = Baseline.read(imports.baseline, SHELL_UPDATE_OPTION)
    found = plan.find_all(imports.packages, imports.exclude)
    settings = plan.settings_of(imports, given.device)._replace(traces=given.preload)
    change = None
    if imports.since:
        settings = settings._replace(files=True)
        try:
            change = ChangeAudit(imports.since, found, settings, os.getcwd())
        except ValueError as error:
            raise ValueError(f"--since: {error}") from None
    progress = _Progress(sys.stderr)
    try:
        checked = run(
            found,
            settings,
            imports.without,
            confirm=not given.no_confirm,
            progress=progress,
            change=change,
        )
    finally:
        progress.clear()
    return Findings(tuple(checked), found, imports, baseline, os.getcwd(), change=change)


class _Progress:
    """One line that is written over and over; nothing where nobody watches."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream if stream.isatty() else None
        self._width = terminal_writer(stream).fullwidth - 1

    def __call__(self, done: int, count: int, target: Target) -> None:
        if self._stream is not None:
            text = f"{done}/{count} {target.nodeid}"[: self._width]
            self._stream.write(f"\r{text:<{self._width}}")
            self._stream.flush()

    def clear(self) -> None:
        if self._stream is not None:
            self._stream.write(f"\r{'':<{self._width}}\r")
            self._stream.flush()


def _show(findings: Findings, written: Sequence[Line], *, full: bool) -> None:
    quiet = (Outcome.PASSED, Outcome.ACCEPTED)
    for record in findings.records if full else ():
        if findings.outcome(record) not in quiet:
            _print(*map(Line, story_lines(record)), Line(""))
    _print(*summary_lines(findings, full=full), *written)


def _print(*lines: Line) -> None:
    writer = terminal_writer(sys.stdout)
    for line in lines:
        writer.line(printable(line.text), **line.markup)


def _write_json(path: str, findings: Findings) -> list[Line]:
    if not path:
        return []
    try:
        write_at_once(path, json_text(audit_document(findings)))
    except OSError as error:
        return [Line(f"the records cannot be written: {error}", "bad")]
    return [Line(f"records: {path}")]


def _write_sarif(path: str, findings: Findings) -> list[Line]:
    if not path:
        return []
    from pytest_cudafork.documents.sarif import write_sarif  # late: few ask for it

    problems = audit_problems(findings, findings.base)
    try:
        write_sarif(path, problems, findings.base, successful=findings.complete)
    except OSError as error:
        return [Line(f"the SARIF file cannot be written: {error}", "bad")]
    return [Line(f"SARIF: {path}")]
