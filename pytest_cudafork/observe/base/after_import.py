"""Runs a callback whenever a named module has been executed, and never imports it itself."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pytest_cudafork.compat import standard_library
from pytest_cudafork.compat.unpatched import os, threading

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

Callback = Callable[[ModuleType], object]
Failed = Callable[[str, Exception], object]
"""Hears of a module whose callback has raised an error, by the module's name."""


class Required:
    """A callback without which a module must not be used: what it raises, the import raises.

    An import that is tried again calls it again.
    """

    def __init__(self, callback: Callback) -> None:
        self._callback = callback

    def __call__(self, module: ModuleType) -> object:
        """Call it."""
        return self._callback(module)


def after_import(name: str, callback: Callback, failed: Failed | None = None) -> Callable[[], None]:
    """Run *callback(module)* whenever the module *name* has been executed, until the undo.

    A module is executed again by ``importlib.reload``, and by an import after it was taken out of
    ``sys.modules``: its functions are others then. One that is in ``sys.modules`` already is handed
    over at once (after waiting for it where another thread is executing it; where this very thread
    is, it is handed over as far as it has come). An error in the callback goes to *failed*, or
    becomes a `CudaForkWarning`, and never reaches the import, unless the callback is `Required`.
    Returns an undo, which is idempotent; raises nothing but what a required callback raises.
    """
    waiting = _Waiting(callback, failed)
    finder = _watch(name, waiting)
    # Another thread's import may have looked for finders before ours was there, or begin just now.
    standard_library.wait_for_import(name)
    if sys.modules.get(name) is not None:
        standard_library.wait_for_import(name)
    module = sys.modules.get(name)
    if module is not None and not waiting.ran:
        try:
            _run(waiting, module)
        except BaseException:  # a required one
            _forget(finder, waiting)
            raise
    return lambda: _forget(finder, waiting)


class _Waiting:
    """A callback, who hears of an error in it, and whether an import has run it."""

    def __init__(self, callback: Callback, failed: Failed | None) -> None:
        self.callback = callback
        self.failed = failed
        self.ran = False


class _UntilExecuted:
    """Stands in for a loader that is a class, until that has executed the module of a spec."""

    def __init__(
        self, spec: ModuleSpec, loader: Any, executed: Callable[[str, ModuleType], None]
    ) -> None:
        self._spec = spec
        self._loader = loader
        self._executed = executed

    def __getattr__(self, name: str) -> Any:
        """Have what the loader has (``get_code``, ``is_package``) for whoever asks the spec."""
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Create it as the loader does."""
        created: ModuleType | None = self._loader.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        """Be gone, have the module executed, and tell."""
        self._spec.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._executed(self._spec.name, module)


class _AfterImportFinder:
    """The finder that lets the others find, and listens to the loader of a watched name.

    Neither class is derived from one of ``importlib.abc``, which nothing asks for: that would
    import a fifth of all that a watched program imports at its start.
    """

    def __init__(self) -> None:
        self._names: dict[_Waiting, str] = {}
        """By what waits, so that to add it or to take it away is one step of the interpreter: a
        finalizer or the handler of a signal may come between any two."""

    def watch(self, name: str, added: _Waiting) -> None:
        """Add a callback for *name*."""
        self._names[added] = name

    def forget(self, added: _Waiting) -> None:
        """Take a callback away again; nothing if that was done before."""
        self._names.pop(added, None)

    @property
    def idle(self) -> bool:
        """Whether no callback is waiting."""
        return not self._names

    def _waiting_for(self, name: str) -> list[_Waiting]:
        """Return what waits for *name*, in the order in which it was added."""
        # A copy: a collection may begin while the list is made.
        return [each for each, awaited in self._names.copy().items() if awaited == name]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Answer for watched names only, with the spec the other finders find."""
        if fullname not in self._names.values():
            return None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec: ModuleSpec | None = find(fullname, path, target)
            if spec is not None:
                self._listen(spec)
                return spec
        return None

    def executed(self, name: str, module: ModuleType) -> None:
        """Run what waits for *name*."""
        for each in self._waiting_for(name):
            each.ran = True
            # The module may have put another object in its place; users see that one.
            _run(each, sys.modules.get(name, module))

    def _listen(self, spec: ModuleSpec) -> None:
        """Have the loader of *spec* tell when it has executed the module.

        The loader stays the very object that other tools expect in ``module.__loader__``;
        only this instance gets an ``exec_module`` of its own, for one execution. Others that the
        loader executes meanwhile are none of ours: an archive has one for all its modules.
        Built-in and frozen modules have a class for their loader, which is not to be changed.
        """
        loader = spec.loader
        execute = getattr(loader, "exec_module", None)
        if loader is None or execute is None:
            self._cannot(spec.name, loader)
            return
        if isinstance(loader, type):
            spec.loader = _UntilExecuted(spec, loader, self.executed)  # type: ignore[assignment]
            return

        if spec.name in getattr(execute, "names", ()):
            return  # somebody has asked for the spec, and not imported it

        def exec_module(module: ModuleType) -> None:
            if getattr(module.__spec__, "name", None) != spec.name:
                execute(module)
                return
            if vars(loader).get("exec_module") is exec_module:
                vars(loader).pop("exec_module")
            execute(module)
            self.executed(spec.name, module)

        exec_module.names = {spec.name, *getattr(execute, "names", ())}  # type: ignore[attr-defined]
        try:
            vars(loader)["exec_module"] = exec_module
        except TypeError:  # no instance dictionary: nothing to listen with
            self._cannot(spec.name, loader)

    def _cannot(self, name: str, loader: object) -> None:
        """Say that the loader of *name* cannot be listened to, to all who wait for it.

        Raises:
            ImportError: A required callback waits for it.

        """
        waiting = self._waiting_for(name)
        if any(isinstance(one.callback, Required) for one in waiting):
            raise ImportError(
                f"{name!r} is to be patched when it is imported, but its loader {loader!r} takes "
                "no attribute: have it imported before it is patched, and not executed again",
                name=name,
            )
        for one in waiting:
            if one.failed is not None:
                one.failed(name, ImportError(f"its loader {loader!r} takes no attribute"))
        if any(one.failed is None for one in waiting):
            _warn(
                f"pytest-cudafork cannot watch the import of {name!r}: its loader {loader!r} takes"
                " no attribute. CUDA touches through it are not recorded; import it before the"
                " session."
            )


_LOCK = threading.RLock()
"""Held while a callback is added or taken away, and with it the finder: of two finders that two
threads put in, only one would hear of an import. A thread may come to it again while it holds it:
by a finalizer, or the handler of a signal, that imports or ends a watch."""


def _new_lock() -> None:
    """Make it anew in a forked child: a thread that was not forked may hold the one before."""
    global _LOCK
    _LOCK = threading.RLock()


os.register_at_fork(after_in_child=_new_lock)


def _watch(name: str, added: _Waiting) -> _AfterImportFinder:
    """Register with the finder in force, or put one in front of ``sys.meta_path``; return it.

    ``sys.meta_path`` is the interpreter's only way to see an import, so the registration is
    process-wide; `_forget` takes the finder out with the last undo.
    """
    made = _AfterImportFinder()
    with _LOCK:
        finder = next((one for one in sys.meta_path if isinstance(one, _AfterImportFinder)), made)
        finder.watch(name, added)  # first: one for which nothing waits is taken out
        if finder not in sys.meta_path:
            sys.meta_path.insert(0, finder)
        return finder


def _forget(finder: _AfterImportFinder, added: _Waiting) -> None:
    """Undo one registration, and the finder with the last of them."""
    with _LOCK:
        finder.forget(added)
        if finder.idle and finder in sys.meta_path:
            sys.meta_path.remove(finder)


def _run(waiting: _Waiting, module: ModuleType) -> None:
    """Call the callback; an error is told, unless it is required."""
    if isinstance(waiting.callback, Required):
        waiting.callback(module)
        return
    try:
        waiting.callback(module)
    except Exception as error:
        if waiting.failed is not None:
            waiting.failed(str(_name_of(module)), error)
            return
        from pytest_cudafork.compat.unpatched import traceback  # late: few programs need it

        _warn(
            f"pytest-cudafork could not set up its witness for {_name_of(module)!r}, so CUDA"
            f" touches through it are not recorded:\n{traceback.format_exc()}"
        )


def _name_of(module: ModuleType) -> object:
    """Name the module; a test may have put anything in its place."""
    return getattr(module, "__name__", module)


def _warn(message: str) -> None:
    """Warn, and where warnings are errors write to stderr: an import must not break."""
    from pytest_cudafork.errors import CudaForkWarning

    try:
        warnings.warn(message, CudaForkWarning, stacklevel=4)
    except CudaForkWarning:
        sys.stderr.write(message + "\n")
