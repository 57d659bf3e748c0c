"""A callback right after a module's execution, unnoticed by everybody else."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import pickle
import pkgutil
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pytest_cudafork import errors
from pytest_cudafork.observe.base import after_import as watch_of_imports
from pytest_cudafork.observe.base.after_import import Required, after_import

NAME = "cudafork_watched"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package with a submodule, importable and not imported."""
    folder = tmp_path / NAME
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "part.py").write_text("def answer():\n    return 42\n\n\ndone = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = list(sys.meta_path)
    yield folder
    for name in [name for name in sys.modules if name.startswith(NAME)]:
        del sys.modules[name]
    assert sys.meta_path == before, "a finder was left behind"


def test_the_callback_runs_once_right_after_the_execution(package: Path) -> None:
    seen: list[tuple[str, bool]] = []
    undo = after_import(f"{NAME}.part", lambda m: seen.append((m.__name__, hasattr(m, "done"))))
    assert NAME not in sys.modules
    importlib.import_module(NAME)
    assert seen == []
    part = importlib.import_module(f"{NAME}.part")
    assert seen == [(f"{NAME}.part", True)]
    assert part.done
    undo()
    importlib.reload(part)
    assert len(seen) == 1


def test_it_runs_again_when_the_module_is_executed_again(package: Path) -> None:
    seen: list[ModuleType] = []
    undos = [after_import(f"{NAME}.part", seen.append)]
    first = importlib.import_module(f"{NAME}.part")
    undos.append(after_import(f"{NAME}.part", seen.append))
    assert seen == [first, first]
    assert importlib.reload(first) is first
    assert seen == [first] * 4
    del sys.modules[f"{NAME}.part"]
    second = importlib.import_module(f"{NAME}.part")
    assert second is not first
    assert seen[4:] == [second, second]
    sys.modules[f"{NAME}.part"] = first  # put back as it was: executed no more
    importlib.import_module(f"{NAME}.part")
    assert len(seen) == 6
    for undo in undos:
        undo()
    del sys.modules[f"{NAME}.part"]
    importlib.import_module(f"{NAME}.part")
    assert len(seen) == 6


def test_an_import_that_was_forbidden_for_a_while_is_seen_afterwards(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[ModuleType] = []
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, f"{NAME}.part", None)
        undo = after_import(f"{NAME}.part", seen.append)
        with pytest.raises(ImportError):
            importlib.import_module(f"{NAME}.part")
    assert seen == []
    module = importlib.import_module(f"{NAME}.part")
    assert seen == [module]
    undo()


class SharedLoader(MetaPathFinder, Loader):
    """One loader for several modules, as a zip file has."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname.startswith(f"{NAME}_") else None

    def exec_module(self, module: ModuleType) -> None:
        """Execute nothing, but import what the name tells."""
        if module.__name__.endswith("_outer"):
            importlib.import_module(f"{NAME}_inner")


def test_a_loader_of_several_modules_tells_them_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = SharedLoader()
    monkeypatch.setattr(sys, "meta_path", [loader, *sys.meta_path])
    seen: list[str] = []
    names = [f"{NAME}_{name}" for name in ("first", "outer", "inner")]
    undos = [after_import(name, lambda module: seen.append(module.__name__)) for name in names]
    for _ in range(2):  # asked for, and not imported
        assert importlib.util.find_spec(f"{NAME}_first") is not None
    importlib.import_module(f"{NAME}_other")
    assert seen == []
    importlib.import_module(f"{NAME}_outer")
    assert seen == [f"{NAME}_inner", f"{NAME}_outer"]
    importlib.import_module(f"{NAME}_first")
    assert seen[2:] == [f"{NAME}_first"]
    for undo in undos:
        undo()
    for name in (*names, f"{NAME}_other"):
        del sys.modules[name]


def test_it_runs_before_the_importer_goes_on(package: Path) -> None:
    (package / "user.py").write_text("from . import part\nmark = part.mark\n")
    undo = after_import(f"{NAME}.part", lambda module: setattr(module, "mark", "set"))
    assert importlib.import_module(f"{NAME}.user").mark == "set"
    undo()


def test_a_module_that_is_there_is_handed_over_at_once() -> None:
    before = list(sys.meta_path)
    seen: list[ModuleType] = []
    after_import("json", seen.append)()
    assert seen == [sys.modules["json"]]
    assert sys.meta_path == before


def test_module_loader_and_spec_are_what_they_are_without_it(package: Path) -> None:
    undo = after_import(f"{NAME}.part", lambda module: None)
    spec = importlib.util.find_spec(f"{NAME}.part")
    assert spec is not None
    assert type(spec.loader) is SourceFileLoader
    part = importlib.import_module(f"{NAME}.part")
    loader = part.__loader__
    assert type(loader) is SourceFileLoader
    assert part.__spec__ is not None
    assert part.__spec__.loader is loader
    assert set(vars(loader)) == {"name", "path"}
    assert inspect.getsource(part.answer).startswith("def answer")
    assert pickle.loads(pickle.dumps(part.answer)) is part.answer
    assert [m.name for m in pkgutil.iter_modules(sys.modules[NAME].__path__)] == ["part"]
    assert pkgutil.get_data(NAME, "part.py") == (package / "part.py").read_bytes()
    assert importlib.reload(part) is part
    undo()


def test_undone_before_the_import_it_never_runs_and_the_finder_is_gone(package: Path) -> None:
    before = list(sys.meta_path)
    seen: list[ModuleType] = []
    kept = after_import(NAME, lambda module: None)
    undo = after_import(f"{NAME}.part", seen.append)
    undo()
    undo()
    kept()
    assert sys.meta_path == before
    importlib.import_module(f"{NAME}.part")
    assert seen == []


def test_an_error_in_the_callback_is_a_warning_and_the_others_still_run(package: Path) -> None:
    seen: list[ModuleType] = []

    def fail(module: ModuleType) -> None:
        raise KeyError("no such name")

    first, second = after_import(NAME, fail), after_import(NAME, seen.append)
    with pytest.warns(errors.CudaForkWarning, match="no such name"):
        module = importlib.import_module(NAME)
    assert seen == [module]
    first()
    second()


def test_where_warnings_are_errors_the_import_still_succeeds(
    package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    undo = after_import(NAME, lambda module: vars(module)["missing"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert importlib.import_module(NAME).__name__ == NAME
    assert "KeyError: 'missing'" in capsys.readouterr().err
    undo()


def test_who_asks_for_errors_hears_of_them_and_nothing_is_warned_of(package: Path) -> None:
    told: list[tuple[str, Exception]] = []
    undo = after_import(
        NAME, lambda module: vars(module)["missing"], lambda *failed: told.append(failed)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module = importlib.import_module(NAME)
        again = after_import(
            NAME, lambda module: vars(module)["gone"], lambda *failed: told.append(failed)
        )
    assert [(name, str(error)) for name, error in told] == [(NAME, "'missing'"), (NAME, "'gone'")]
    assert sys.modules[NAME] is module
    undo()
    again()


def test_a_module_that_fails_runs_no_callback_and_its_next_import_does(package: Path) -> None:
    seen: list[ModuleType] = []
    undo = after_import(f"{NAME}.flaky", seen.append)
    (package / "flaky.py").write_text("raise OSError('not yet')\n")
    with pytest.raises(OSError, match="not yet"):
        importlib.import_module(f"{NAME}.flaky")
    assert seen == []
    (package / "flaky.py").write_text("ready = True  # longer than before\n")
    importlib.invalidate_caches()
    assert seen == [importlib.import_module(f"{NAME}.flaky")]
    undo()


def test_a_module_that_does_not_exist_is_still_missing(package: Path) -> None:
    undo = after_import(f"{NAME}.nowhere", lambda module: None)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(f"{NAME}.nowhere")
    undo()


def test_a_module_in_execution_in_another_thread_is_waited_for(package: Path) -> None:
    (package / "slow.py").write_text(
        "import threading\nentered = threading.Event()\nleave = threading.Event()\n"
        "from . import gate\ngate.entered.set()\ngate.leave.wait(200)\ndone = True\n"
    )
    (package / "gate.py").write_text(
        "import threading\nentered = threading.Event()\nleave = threading.Event()\n"
    )
    gate = importlib.import_module(f"{NAME}.gate")
    importer = threading.Thread(target=importlib.import_module, args=(f"{NAME}.slow",))
    importer.start()
    assert gate.entered.wait(200)
    seen: list[bool] = []
    undos: list[Callable[[], None]] = []

    def watch() -> None:
        undos.append(after_import(f"{NAME}.slow", lambda m: seen.append(hasattr(m, "done"))))

    watcher = threading.Thread(target=watch)
    watcher.start()
    watcher.join(0.05)
    assert seen == []
    gate.leave.set()
    importer.join(200)
    watcher.join(200)
    assert seen == [True]
    undos.pop()()


def test_many_threads_watching_and_importing_lose_no_callback(package: Path) -> None:
    seen: list[int] = []
    start = threading.Barrier(9)

    def watch(number: int) -> None:
        start.wait()
        undos.append(after_import(f"{NAME}.part", lambda module: seen.append(number)))

    def load() -> None:
        start.wait()
        importlib.import_module(f"{NAME}.part")

    undos: list[object] = []
    threads = [threading.Thread(target=watch, args=(n,)) for n in range(8)]
    threads.append(threading.Thread(target=load))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(200)
    assert sorted(seen) == list(range(8))
    for undo in undos:
        assert callable(undo)
        undo()


def test_two_threads_that_watch_first_have_one_finder_between_them(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    undos: list[Callable[[], None]] = []

    def watch(name: str) -> None:
        undos.append(after_import(f"{NAME}.part", lambda module: seen.append(name)))

    class Path(list[Any]):
        """Lets another thread watch while the first puts its finder in."""

        other = threading.Thread(target=watch, args=["second"])

        def insert(self, index: Any, finder: object) -> None:
            if not self.other.ident:
                self.other.start()
                self.other.join(0.2)  # it would be through by now, or waits for the first
            super().insert(index, finder)

    with monkeypatch.context() as patch:
        patch.setattr(sys, "meta_path", path := Path(sys.meta_path))
        watch("first")
        path.other.join()
        importlib.import_module(f"{NAME}.part")
        for undo in undos:
            undo()
        assert len(path) == len(Path(sys.meta_path))
    assert sorted(seen) == ["first", "second"]


@pytest.mark.parametrize("name", ["time", "__hello__"], ids=["built-in", "frozen"])
def test_a_module_of_the_interpreter_that_is_executed_again_is_seen(name: str) -> None:
    module = importlib.import_module(name)
    loader = module.__loader__
    assert isinstance(loader, type)
    seen: list[ModuleType] = []
    undo = after_import(name, Required(seen.append))
    assert seen == [module]
    spec = importlib.util.find_spec(name)  # asked for, and not imported
    assert spec is not None
    assert importlib.reload(module) is module
    assert seen == [module, module]
    assert module.__loader__ is loader
    assert module.__spec__ is not None
    assert module.__spec__.loader is loader
    undo()
    importlib.reload(module)
    assert len(seen) == 2


def test_a_module_of_the_interpreter_is_seen_when_it_is_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "__hello__", raising=False)
    seen: list[ModuleType] = []
    undo = after_import("__hello__", seen.append)
    spec = importlib.util.find_spec("__hello__")
    assert spec is not None
    assert spec.loader is not None
    assert spec.loader.is_package("__hello__") in (True, False)  # type: ignore[attr-defined]
    assert seen == [importlib.import_module("__hello__")]
    undo()


def test_what_a_required_callback_raises_the_import_raises_each_time(package: Path) -> None:
    seen: list[ModuleType] = []

    def refuse(module: ModuleType) -> None:
        seen.append(module)
        raise LookupError("it lacks something")

    other: list[ModuleType] = []
    undo_first = after_import(f"{NAME}.part", other.append)
    undo = after_import(f"{NAME}.part", Required(refuse))
    for _ in range(2):
        with pytest.raises(LookupError, match="it lacks something"):
            importlib.import_module(f"{NAME}.part")
        assert f"{NAME}.part" not in sys.modules
    assert (len(seen), len(other)) == (2, 2), "it was executed twice"
    undo()
    undo_first()
    assert importlib.import_module(f"{NAME}.part").done
    with pytest.raises(LookupError):
        after_import(f"{NAME}.part", Required(refuse))


class Slotted:
    """A loader that takes no attribute."""

    __slots__ = ()

    def create_module(self, spec: object) -> None: ...

    def exec_module(self, module: object) -> None: ...


class Finder:
    """Finds a module for it."""

    def find_spec(self, name: str, path: object, target: object = None) -> object:
        if name != f"{NAME}.part":
            return None
        return importlib.util.spec_from_loader(name, Slotted())  # type: ignore[arg-type]


@pytest.fixture
def unwatched(package: Path) -> Iterator[None]:
    """Have a module that nobody can watch; callbacks that were added before have the first word."""
    finder: Any = Finder()
    sys.meta_path.insert(0, finder)
    yield
    sys.meta_path.remove(finder)


@pytest.mark.usefixtures("unwatched")
def test_a_module_that_cannot_be_watched_is_not_imported_without_what_is_required() -> None:
    undo = after_import(f"{NAME}.part", Required(lambda module: None))
    with pytest.raises(ImportError, match="is to be patched when it is imported"):
        importlib.import_module(f"{NAME}.part")
    undo()


@pytest.mark.usefixtures("unwatched")
def test_of_a_module_that_cannot_be_watched_all_hear_who_wait_for_it() -> None:
    told: list[tuple[str, Exception]] = []
    undos = [
        after_import(f"{NAME}.part", lambda module: None),
        after_import(f"{NAME}.part", lambda module: None, lambda *failed: told.append(failed)),
    ]
    with pytest.warns(errors.CudaForkWarning, match="cannot watch the import of"):
        importlib.import_module(f"{NAME}.part")
    [(name, error)] = told
    assert name == f"{NAME}.part"
    assert isinstance(error, ImportError)
    assert "takes no attribute" in str(error)
    undos.pop(0)()
    sys.modules.pop(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        importlib.import_module(name)
    assert len(told) == 2
    undos[0]()


def test_a_child_that_is_forked_while_another_thread_registers_can_register(package: Path) -> None:
    held, forked = threading.Event(), threading.Event()

    def register() -> None:
        with watch_of_imports._LOCK:
            held.set()
            forked.wait()

    thread = threading.Thread(target=register)
    thread.start()
    held.wait()
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)  # its default action ends a process that waits for ever
        after_import(NAME, lambda module: None)()
        os._exit(0)
    forked.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


COLLECTED_MEANWHILE = """
import gc, sys
from pytest_cudafork.observe.base.after_import import after_import

class Cycle:
    def __init__(self, undo):
        self.itself, self.undo = self, undo

    def __del__(self):
        self.undo()

heard = []
for allocated in range(1, 60):
    Cycle(after_import("other", print))
    gc.set_threshold(allocated, 1, 1)  # the collection begins a little later each time
    undo = after_import("colorsys", heard.append)
    gc.set_threshold(700, 10, 10)
    import colorsys
    assert heard == [colorsys], allocated
    heard.clear()
    del sys.modules["colorsys"]
    Cycle(after_import("other", print))
    gc.set_threshold(allocated, 1, 1)
    undo()
    gc.set_threshold(700, 10, 10)
print("ended")
"""

INTERRUPTED = """
import sys
from pytest_cudafork.observe.base.after_import import after_import

class Interrupted(list):
    def insert(self, *given):
        super().insert(*given)
        interrupt("inserted")

    def remove(self, *given):
        super().remove(*given)
        interrupt("removed")

def interrupt(when):  # as the handler of a signal may
    if when in interrupts:
        return
    interrupts.append(when)
    undo_other = after_import("wave", heard.append)
    import wave
    assert heard.pop() is sys.modules.pop("wave")
    undo_other()

interrupts, heard = [], []
before = list(sys.meta_path)
sys.meta_path = Interrupted(before)
undo = after_import("colorsys", heard.append)
import colorsys
assert heard == [colorsys]
undo()
assert interrupts == ["inserted", "removed"]
assert sys.meta_path == before, sys.meta_path
print("ended")
"""


@pytest.mark.parametrize(
    "program", [COLLECTED_MEANWHILE, INTERRUPTED], ids=["finalizer", "handler"]
)
def test_a_finalizer_or_a_handler_may_come_while_its_thread_adds_a_callback(program: str) -> None:
    """A process for it, which would wait for ever for a lock that it holds itself."""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr
