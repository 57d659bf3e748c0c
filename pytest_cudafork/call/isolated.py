"""The decorator ``isolated``: a test or a function that runs in a process of its own.

On a test it is the marker ``cuda_isolated`` with the same arguments. Whatever else calls the
function gets it run in a child: its arguments go there, its result or exception comes back.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from pytest_cudafork.compat import standard_library
from pytest_cudafork.compat.unpatched import contextlib, inspect, re
from pytest_cudafork.errors import CudaForkError
from pytest_cudafork.settings import environment
from pytest_cudafork.settings.markers import DEFAULT_TIMEOUT, ISOLATED, check_isolated

if TYPE_CHECKING:
    from pytest_cudafork.call.run import Call

_F = TypeVar("_F", bound=Callable[..., Any])
_SIGNATURE = "@isolated"
_DEFAULTS: dict[str, Any] = {
    "method": "auto",
    "timeout": None,
    "gpus": None,
    "fixtures": "own",
    "scope": "test",
    "env": None,
}
_PLUGIN = "pytest_cudafork.plugin"
_ATTRIBUTE = "_cudafork_isolation"
"""Where a decorated function keeps its ``_Isolation``."""


@overload
def isolated(fn: _F, /) -> _F: ...


@overload
def isolated(
    *,
    method: Literal["auto", "fork", "forkserver", "spawn"] = "auto",
    timeout: float | None = None,
    gpus: int | None = None,
    fixtures: Literal["own", "inherit"] = "own",
    scope: str = "test",
    env: Mapping[str, str] | None = None,
) -> Callable[[_F], _F]: ...


def isolated(fn: Any = None, /, **options: Any) -> Any:
    """Run a test, or a function whenever it is called, in a process of its own.

    Use it with arguments or without. On a test function, a method, a coroutine function or a test
    class it is the marker ``cuda_isolated``, and pytest runs the test as with that. Called by
    anybody else, the function runs in a child: its arguments travel there, what it returns or
    raises comes back, with the child's traceback as the cause. In its own child it runs in place,
    and so does a test in a session whose plugin is switched off.

    Args:
        fn: What is decorated.
        **options: ``method`` ("auto", "fork", "forkserver" or "spawn"; auto forks where the driver
            says that CUDA is untouched and there are no threads, and takes a clean process
            elsewhere), ``timeout`` (seconds; default 600, ``float("inf")`` for none), ``env`` (a
            dict of variables for the child, from before anything is imported there). For tests
            alone: ``gpus`` (how many it sees), ``fixtures`` ("own": the whole test in the child;
            "inherit": set up in the calling process, the body in the child) and ``scope`` ("test",
            or whom it shares the child with).

    Raises:
        TypeError: There is no such argument, or what is decorated cannot be run elsewhere.
        ValueError: An argument has a value that is not accepted.
        CudaForkError, ChildError (when called): As ``run_forked`` and its like do.

    """
    unknown = sorted(options.keys() - _DEFAULTS.keys())
    if unknown:
        raise TypeError(
            f"isolated() got an unexpected keyword argument {unknown[0]!r}: it takes "
            f"{', '.join(_DEFAULTS)}"
        )
    check_isolated(options, _SIGNATURE)
    if fn is None:
        return functools.partial(_decorated, options)
    return _decorated(options, fn)


def _decorated(options: dict[str, Any], fn: Any) -> Any:
    """Return what stands in for the function, method or class that is decorated."""
    import pytest

    said = {key: value for key, value in options.items() if value != _DEFAULTS[key]}
    mark = getattr(pytest.mark, ISOLATED).with_args(**said)
    if isinstance(fn, type):
        return mark(fn)
    if isinstance(fn, staticmethod | classmethod):
        return type(fn)(_decorated(options, fn.__func__))
    _check_function(fn)
    isolation = _Isolation(fn, {**_DEFAULTS, **options})
    if inspect.iscoroutinefunction(fn):

        @functools.wraps(fn)
        async def run(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            if isolation.is_here or _is_test_without_plugin(fn):
                return await fn(*args, **kwargs)
            from pytest_cudafork.call.coroutines import call_in_child

            return await call_in_child(isolation.prepared(run, args, kwargs))

    else:

        @functools.wraps(fn)
        def run(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            if isolation.is_here or _is_test_without_plugin(fn):
                return fn(*args, **kwargs)
            return isolation.prepared(run, args, kwargs).run()

    # as a marker does it, but for functions of any name
    run.pytestmark = [*getattr(fn, "pytestmark", []), mark.mark]  # type: ignore[attr-defined]
    setattr(run, _ATTRIBUTE, isolation)
    return run


def _check_function(fn: Any) -> None:
    from pytest_cudafork.compat.pytest_internals import is_fixture

    name = getattr(fn, "__qualname__", repr(fn))
    if not callable(fn):
        hint = f": write isolated(method={fn!r})" if isinstance(fn, str) else ""
        raise TypeError(
            f"{_SIGNATURE} is for functions, methods and test classes, not for {fn!r}{hint}"
        )
    if is_fixture(fn):
        raise TypeError(
            f"{_SIGNATURE} on {name}, which is a fixture: pytest takes no marks on fixtures. Let "
            f"it call a function that has {_SIGNATURE}, if what that returns can travel; or "
            "isolate the test"
        )
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise TypeError(
            f"{_SIGNATURE} on {name}: a generator stops in the middle, and a process that stops "
            "there could not be told from one that hangs. Return a list, or isolate what calls it"
        )


def _is_test_without_plugin(fn: Any) -> bool:
    """Whether pytest is running this very function as its test, and without this plugin.

    Then it is as with any marker of a plugin that is switched off (``-p no:cudafork``): nobody
    sees to it. The plugin is imported wherever it is on.
    """
    if _PLUGIN in sys.modules:
        return False
    name = re.escape(getattr(fn, "__name__", ""))
    running = environment.value(environment.TEST)
    return re.search(rf"::{name}(\[.*\])? \(call\)$", running, re.DOTALL) is not None


class _Isolation:
    """What is asked for a decorated function, and whether this process is its own already."""

    def __init__(self, fn: Callable[..., Any], options: dict[str, Any]) -> None:
        self.name = getattr(fn, "__qualname__", repr(fn))
        self._options = options
        self._here = 0

    @property
    def is_here(self) -> bool:
        """Whether a call runs in place."""
        return self._here > 0

    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        """Let calls run in place for a while."""
        self._here += 1
        try:
            yield
        finally:
            self._here -= 1

    def prepared(
        self, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Call:
        """Return the call of the function that stands in, in a child where it runs in place.

        Raises:
            ValueError: Something was asked for that only a test can have.
            CudaForkError: It is to be forked, and CUDA is initialized here.

        """
        from pytest_cudafork.call import run as calls
        from pytest_cudafork.call.coroutines import runner_of

        __tracebackhide__ = True
        options = self._options
        for key in ("gpus", "scope"):
            if options[key] != _DEFAULTS[key]:
                raise ValueError(
                    f"{self.name} is called outside of its own test, and {_SIGNATURE}({key}="
                    f"{options[key]!r}) is for tests: isolate the test that calls it, with {key}="
                )
        method = self._method()
        if method != "fork" and args and standard_library.is_unittest(type(args[0])):
            args = (standard_library.apart_from_its_run(args[0]), *args[1:])
        helpers = calls.helpers_of_process()
        timeout = DEFAULT_TIMEOUT if options["timeout"] is None else options["timeout"]
        return calls.Call(
            method,
            call_here,
            (run, runner_of(run), args, kwargs),
            {},
            timeout=None if timeout == float("inf") else timeout,
            server=helpers.server if method == "forkserver" else None,
            caretaker=helpers.caretaker,
            env=options["env"],
            shown=(run, args, kwargs),
        )

    def _method(self) -> str:
        from pytest_cudafork.check.start_method import automatic, process_state
        from pytest_cudafork.check.watch import current_watch

        __tracebackhide__ = True
        method = str(self._options["method"])
        state = process_state(current_watch())
        if method == "auto":
            name, _ = automatic(state)
            # in a fork everything is imported already
            return "forkserver" if name == "fork" and self._options["env"] else name
        if method == "fork" and state.cuda in ("initialized", "poisoned"):
            raise CudaForkError(
                f"{self.name} is to run in a fork of this process, but CUDA is {state.cuda} here: "
                "every CUDA call in the child would fail. Nothing was forked. Leave the method to "
                f"{_SIGNATURE}, or write {_SIGNATURE}(method='forkserver')."
            )
        return method


def call_here(
    run: Callable[..., Any],
    runner: Callable[..., Any] | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Call a decorated function in place, in the child that was made for it.

    Args:
        run: The decorated function.
        runner: What runs a coroutine function with its arguments; None for other functions.
        args: Its positional arguments.
        kwargs: Its keyword arguments.

    """
    from pytest_cudafork.call.unittest_method import call_telling

    if runner is None:
        call = functools.partial(run, *args, **kwargs)
    else:
        call = functools.partial(runner, run, args, kwargs)
    with getattr(run, _ATTRIBUTE).here():
        first = args[0] if args else None
        return call_telling(call, run.__name__, first, cleans_up=runner is None)


@contextlib.contextmanager
def run_here(fn: object) -> Iterator[None]:
    """Let a test function, if it is decorated, run in place for a while.

    pytest sees to its process then. The decorated function is found below other decorators, as far
    as these keep it in ``__wrapped__``.
    """
    with contextlib.ExitStack() as stack:
        for one in _layers(fn):
            isolation = vars(one).get(_ATTRIBUTE) if hasattr(one, "__dict__") else None
            if isinstance(isolation, _Isolation):
                stack.enter_context(isolation.here())
        yield


def _layers(fn: Any) -> Iterator[Any]:
    """Go through a function and those that it stands in for."""
    seen: set[int] = set()
    while fn is not None and id(fn) not in seen:
        seen.add(id(fn))
        yield fn
        inner = getattr(getattr(fn, "hypothesis", None), "inner_test", None)
        if inner is not None:  # what @given was put on; it keeps no __wrapped__
            yield from _layers(inner)
        fn = getattr(fn, "__func__", None) or getattr(fn, "__wrapped__", None)
