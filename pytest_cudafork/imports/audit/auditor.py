"""Imports the modules of one package, through one fork server, and returns their records.

The server is started again when it is lost, and the module that ended it is found and named.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from pytest_cudafork.imports.audit import verdicts
from pytest_cudafork.imports.audit.process import (
    NO_PROCESS,
    AuditProcess,
    FreshImport,
    WatchedProcess,
)
from pytest_cudafork.imports.values.records import ImportRecord, ImportVerdict
from pytest_cudafork.imports.values.settings import AuditSettings
from pytest_cudafork.process import exit_status

_MOST_LOSSES = 60
"""How many fork servers may be lost to modules that end their parent, each of them twice."""
_MOST_FAULTS = 3
"""How many may be lost while no module is imported."""
_MOST_REFUSALS = 3
"""How many in a row may end because there was no room for one import."""
_SILENCE_SECONDS = 30.0
"""How long a fork server may say nothing beyond the time that an import may take."""


class Auditor:
    """Imports modules in processes of their own, through one fork server that is restarted if lost.

    A fork server that is lost while modules are imported was most likely ended by one of them. Each
    of those is then imported again while no other one is, so that it is known which.
    """

    def __init__(self, package: str, settings: AuditSettings, preloads: Sequence[str] = ()) -> None:
        self._package = package
        self._settings = settings._replace(package=package)
        self._preloads = list(preloads)
        self._records: dict[str, ImportRecord] = {}
        self._asked: dict[str, None] = {}
        self._suspects: list[str] = []
        self._hanging: list[str] = []
        self.inferred: set[str] = set()
        """Modules that were not imported because their package takes too long."""
        self._losses = 0
        self._refusals = 0
        self._faults = 0
        self._process: AuditProcess | None = None

    def ask(self, modules: Sequence[str]) -> None:
        """Have modules imported, in this order; returns at once."""
        new = [name for name in dict.fromkeys(modules) if name not in self._asked]
        self._asked.update(dict.fromkeys(new))
        new = [name for name in new if not self._infer(name)]
        if self._process is None:
            if new:
                self._start()
        elif new and not self._suspects:
            self._process.say({"import": new})

    def record(self, module: str) -> ImportRecord:
        """Return a module's record; waits for it."""
        if module not in self._asked:
            self.ask([module])
        while module not in self._records:
            self._take()
        return self._records[module]

    def import_afresh(self, module: str) -> ImportRecord:
        """Import a module in an interpreter of its own, and return that record."""
        known = self._records.get(module)  # threads that did not end are not waited for once more
        endless = [each.where for each in known.running] if known and known.so_far else []
        try:
            process = FreshImport(self._settings, module, endless)
        except OSError as error:
            return self._unknown(module, f"{NO_PROCESS}: {error}")
        with contextlib.closing(process):
            answer = process.answer(self._settings.limit_of(module))
            if process.error:
                return self._unknown(module, process.error)
            return self._judge(process, answer)

    def skip_below(self, package: str) -> None:
        """Import nothing below a package that takes too long: each import would run it again.

        What took too long there already, beside the package itself, did so because of it.
        """
        self._hanging.append(f"{package}.")
        names = [name for name in self._asked if not self._has_ended(name) and self._infer(name)]
        suspects, self._suspects = self._suspects, [s for s in self._suspects if s not in names]
        if self._process is not None and names:
            self._process.say({"drop": names})
            if suspects != self._suspects:
                self._process.say({"import": self._next()})

    def _has_ended(self, module: str) -> bool:
        record = self._records.get(module)
        return record is not None and record.verdict is not ImportVerdict.TIMED_OUT

    def _infer(self, module: str) -> bool:
        package = next((name for name in self._hanging if module.startswith(name)), "")
        if package:
            package = package.removesuffix(".")
            reason = (
                f"its package {package} took longer than {self._settings.limit_of(package):g} s"
            )
            self._records[module] = self._unknown(module, reason, ImportVerdict.TIMED_OUT)
            self.inferred.add(module)
        return bool(package)

    def close(self) -> None:
        """End the fork server and everything that it has started."""
        process, self._process = self._process, None
        if process is not None:
            process.close()

    def _start(self) -> None:
        try:
            self._process = process = AuditProcess(self._settings)
        except OSError as error:
            self._give_up(f"{NO_PROCESS}: {error}")
            return
        if self._preloads:
            process.say({"preload": self._preloads})
        process.say({"import": self._next()})

    def _next(self) -> list[str]:
        """Return what is to be imported now: one suspect, or all that is left."""
        return self._suspects[:1] or [name for name in self._asked if name not in self._records]

    def _take(self) -> None:
        """Take one message of the fork server; start another one if it is gone."""
        if self._process is None:
            self._start()
        process = self._process
        if process is None:
            return
        message = process.read(self._settings.longest_limit + _SILENCE_SECONDS)
        if message is None:
            self._replace(process)
        elif "lost" in message:
            if process.started:
                self._attribute_loss(list(process.started), exit_status.describe(message["status"]))
                process.started.clear()
            process.say({"import": self._next()})
        elif "module" in message:
            record = self._judge(process, message)
            self._records.setdefault(record.module, record)
            self._refusals = 0
            if record.module in self._suspects:
                self._suspects.remove(record.module)
                process.say({"import": self._next()})

    def _replace(self, process: AuditProcess) -> None:
        """Find out why a fork server is gone, or silent, and go on with another one."""
        if not process.is_gone:
            process.kill()
        how = process.how_it_ended()
        process.close()
        self._process = None
        if process.error:
            self._give_up(process.error)
        elif process.refusal:  # none was running
            self._refusals += 1
            if self._refusals >= _MOST_REFUSALS:
                self._give_up(f"{NO_PROCESS}: {process.refusal}")
        elif process.started:
            self._attribute_loss(list(process.started), how)
        elif process.pid and not self._preloads:
            # It was ready: an import may have ended it before it could say that it has started it.
            self._attribute_loss(self._next(), how)
        else:
            self._faults += 1
            self._preloads.clear()  # one of them, maybe
        if self._losses > _MOST_LOSSES or self._faults >= _MOST_FAULTS:
            self._give_up(f"the audit's process {how}")

    def _attribute_loss(self, running: list[str], how: str) -> None:
        """Put the loss down to an import that ran alone; otherwise have each run alone.

        One import that is known to have run need not have been alone: a module may end the fork
        server before that could say that it has started it.
        """
        self._losses += 1
        if running != self._suspects[:1]:
            self._suspects = running
            return
        (module,) = running
        reason = f"it ended the process that had started it, which {how.partition(';')[0]}"
        self._records[module] = self._unknown(module, reason, ImportVerdict.CRASHED)
        self._suspects = [name for name in self._suspects if name != module]

    def _give_up(self, reason: str) -> None:
        for name in self._asked:
            if name not in self._records:
                self._records[name] = self._unknown(name, reason)

    def _judge(self, process: WatchedProcess, answer: dict[str, Any]) -> ImportRecord:
        touches = process.touches_of(int(answer["pid"]))
        return verdicts.judge(self._package, self._settings, answer, touches, process.limits)

    def _unknown(
        self, module: str, reason: str, verdict: ImportVerdict = ImportVerdict.NOT_OBSERVABLE
    ) -> ImportRecord:
        return ImportRecord(
            module=module,
            package=self._package,
            verdict=verdict,
            without=self._settings.without,
            reason=" ".join(verdicts.explained(reason).split()),
        )


def why_not(settings: AuditSettings) -> str:
    """Return why no process can audit with these settings, or ""; starts one to ask it."""
    with contextlib.closing(AuditProcess(settings)) as process:
        while process.error == "" and process.pid == 0:
            if process.read(_SILENCE_SECONDS) is None:
                return f"the audit's process {process.how_it_ended()}"
        return verdicts.explained(process.error)
