"""The object behind the fixture ``child_patch``."""

from __future__ import annotations

import sys
from typing import Any

from pytest_cudafork.compat import standard_library
from pytest_cudafork.compat.unpatched import contextlib, os, shutil, threading
from pytest_cudafork.errors import ChildError
from pytest_cudafork.patch import targets
from pytest_cudafork.patch.applying import inherited, records
from pytest_cudafork.patch.applying.apply import Loaded, Place, apply
from pytest_cudafork.patch.applying.records import Record
from pytest_cudafork.patch.values import pickled
from pytest_cudafork.settings import environment
from pytest_cudafork.settings.arguments import check_variable

_NOT_GIVEN: Any = object()


class ChildPatch:
    """Patches of this process and of all processes that it starts while they are in force.

    Works as ``monkeypatch``, but what is patched has a dotted name, for another process has to find
    it, and values travel by cloudpickle. A module that is not imported yet is patched as soon as it
    has been executed, before whoever imports it gets it; nothing is imported for that.
    """

    def __init__(self, folder: str, owner: int | None = None) -> None:
        """``folder`` is the test's, for patches; ``owner`` the process that undoes them at its end.

        A forked child has this object, another child may be given a copy; there ``owner`` is the
        process of the test, and what the child patches is found by its own children alone.
        """
        self._test_folder = folder
        self._owner = owner or os.getpid()
        self._folder = ""
        self._writer = self._owner
        self._records: list[Record] = []
        self._places: list[Place] = []
        self._undo = contextlib.ExitStack()
        self._locks = {self._owner: threading.RLock()}
        """One for each process: a thread that was not forked may hold its parent's for ever. What a
        patch calls (a ``__setattr__``), a finalizer and a signal handler may patch meanwhile."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Become the same test's in another process; its environment tells what is in force."""
        return ChildPatch, (self._test_folder, self._owner)

    def setattr(
        self,
        target: object,
        name: Any = _NOT_GIVEN,
        value: Any = _NOT_GIVEN,
        raising: bool = True,
    ) -> None:
        """Set an attribute: ``setattr("package.module.Class.name", value)``.

        Or, as with ``monkeypatch``, ``setattr(thing, "name", value)`` with a module or a class.

        Args:
            target: The dotted name of the attribute, or the module or class that has it.
            name: The value in the first form, the name in the second.
            value: The value in the second form.
            raising: Whether it is an error if there is no such attribute.

        Raises:
            AttributeError: There is no such attribute; where the module is not imported here, its
                import raises this, and the test fails in its teardown if a child's did.
            ChildError: The value does not pickle, or it is or holds a mock or an open file.
            ModuleNotFoundError, TypeError, ValueError: The name is none that a child could find.

        """
        call = "child_patch.setattr"
        if value is _NOT_GIVEN:
            if not isinstance(target, str) or name is _NOT_GIVEN:
                raise TypeError(f"{call} takes a dotted name and a value, or thing, name and value")
            dotted, value = target, name
        else:
            dotted = self._dotted(call, target, name)
        self._add("setattr", dotted, value=value, raising=raising)

    def delattr(self, target: object, name: Any = _NOT_GIVEN, raising: bool = True) -> None:
        """Remove an attribute: ``delattr("package.module.name")`` or ``delattr(thing, "name")``.

        Raises as ``setattr`` does.
        """
        call = "child_patch.delattr"
        if name is _NOT_GIVEN:
            if not isinstance(target, str):
                raise TypeError(f"{call} takes a dotted name, or a thing and a name")
            dotted = target
        else:
            dotted = self._dotted(call, target, name)
        self._add("delattr", dotted, raising=raising)

    def setitem(self, target: object, key: object, value: object) -> None:
        """Set an item of a mapping, which is given by its name: ``setitem("package.CONFIG", ...)``.

        Raises as ``setattr`` does; KeyError does not come up.
        """
        self._add("setitem", self._mapping("setitem", target), key=key, value=value)

    def delitem(self, target: object, key: object, raising: bool = True) -> None:
        """Remove an item of a mapping, which is given by its dotted name.

        Raises as ``setattr`` does, and KeyError if there is no such item.
        """
        self._add("delitem", self._mapping("delitem", target), key=key, raising=raising)

    def setenv(self, name: str, value: str, prepend: str | None = None) -> None:
        """Set a variable; with ``prepend``, put the value and that text before what it was.

        Raises:
            TypeError: Name or value is no text.
            ValueError: No environment can hold that.

        """
        if not (isinstance(name, str) and isinstance(value, str)):
            raise TypeError(f"child_patch.setenv({name!r}, {value!r}): both are texts")
        if not isinstance(prepend, str | None):
            raise TypeError(f"child_patch.setenv: prepend={prepend!r} is to be a text, or None")
        try:
            check_variable(name, value + (prepend or ""))
        except ValueError as error:
            raise ValueError(f"child_patch.setenv: {error}") from None
        former = environment.optional(name)
        if prepend and former is not None:
            value = f"{value}{prepend}{former}"
        self._apply(Record("setenv", "", name, value=os.fsencode(value)), Loaded())

    def delenv(self, name: str, raising: bool = True) -> None:
        """Remove a variable.

        Raises:
            KeyError: There is none, unless ``raising`` is false.
            TypeError: The name is no text.

        """
        if not isinstance(name, str):
            raise TypeError(f"child_patch.delenv({name!r}): the name of a variable is a text")
        self._apply(Record("delenv", "", name, raising=raising), Loaded())

    def undo(self) -> None:
        """Undo all patches in this process; what is started from now on is not patched.

        Raises:
            ChildError: A process that was started could not apply a patch.

        """
        __tracebackhide__ = True
        self._records.clear()
        folder, self._folder = self._folder, ""
        try:
            self._undo.close()
        finally:
            if folder and self._writer == os.getpid():
                shutil.rmtree(folder, ignore_errors=True)
            told = records.take_complaints(self._test_folder) if self._owner == os.getpid() else ""
        if told:
            raise ChildError(f"patches of child_patch that could not be applied:\n{told}")

    # -- what these have in common -----------------------------------------------------------------

    @staticmethod
    def _dotted(call: str, target: object, name: Any) -> str:
        if not isinstance(name, str):
            raise TypeError(f"{call}: the name of an attribute is a text, not {repr(name)[:200]}")
        owner = target if isinstance(target, str) else targets.name_of(call, target)
        return f"{owner}.{name}"

    @staticmethod
    def _mapping(kind: str, target: object) -> str:
        if isinstance(target, str):
            return target
        if target is os.environ:
            raise TypeError(f"child_patch.{kind}: for variables there are setenv and delenv")
        raise TypeError(
            f"child_patch.{kind}: a mapping is given by its dotted name, as in 'package.CONFIG', "
            f"not as an object: another process cannot find {repr(target)[:200]}"
        )

    def _add(
        self,
        kind: str,
        dotted: str,
        *,
        key: object = None,
        value: object = None,
        raising: bool = True,
    ) -> None:
        call = f"child_patch.{kind}({dotted!r})"
        module, path = targets.split(call, dotted)
        record = Record(
            kind,
            module,
            path,
            key=pickled(call, "key", key) if kind.endswith("item") else b"",
            value=pickled(call, "value", value) if kind.startswith("set") else b"",
            raising=raising,
            search=tuple(one for one in sys.path if isinstance(one, str) and os.path.isabs(one)),
        )
        self._apply(record, Loaded(key, value))

    def _apply(self, record: Record, loaded: Loaded) -> None:
        """Apply a patch here, then let children know of it."""
        me = os.getpid()
        lock = self._locks.setdefault(me, threading.RLock())  # the same one for all threads
        with lock:  # threads of a test may patch, too
            if not self._folder or self._writer != me:
                self._begin()
                self._writer = me
            folder = self._folder

            def failed(text: str) -> None:
                if os.getpid() != me:  # whoever patches has the error itself
                    records.complain(folder, text)

            self._undo.callback(apply(record, loaded, failed, self._places))
            self._records.append(record)
            records.write(folder, self._records)
            inherited.applied[folder] = len(self._records)

    def _begin(self) -> None:
        """Let the processes that are started from now on find the patches."""
        if not self._folder:
            outer = environment.value(environment.PATCHES)
            with contextlib.suppress(FileNotFoundError):
                # those of the test that has started this process hold in its children, too
                self._records = records.read(outer) if outer else []
        folder, server = records.make_folder(self._test_folder), standard_library.forkserver_pid()
        records.write(folder, self._records)
        self._folder = folder
        inherited.applied[folder] = len(self._records)
        self._undo.callback(inherited.applied.pop, folder, None)
        # one that was started meanwhile has the environment of the patches
        self._undo.callback(standard_library.end_forkserver_unless, server)
        self._undo.push(inherited.tell_multiprocessing(folder))
        inherited.tell_children(self._undo, folder)
