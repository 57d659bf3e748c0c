"""C functions of other modules are watched where CPython calls them, and stay what they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.native import VERSIONS, Scripts, interpreter, needs_libraries

pytestmark = needs_libraries


@pytest.fixture
def scripts(tmp_path: Path) -> Scripts:
    """Scripts in a folder of their own."""
    return Scripts(tmp_path)


SCRIPT = """
    import datetime, gc
    from pytest_cudafork.compat.cpython_layout import place_of

    native = phantom.install("absent").native
    kind = datetime.timedelta
    place = place_of(kind)
    assert place is not None
    told, answer = [], []

    def tell(args, kwargs, error):
        told.append((args, kwargs or {}, type(error).__name__))
        if answer and isinstance(answer[0], Exception):
            raise answer[0]
        return answer[0] if answer else None

    def attempt(*args, **kwargs):
        try:
            return kind(*args, **kwargs)
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    bare = attempt("x"), attempt(days=[])
    undo = native.after_call(kind, place, tell, always=False)
    assert attempt(1) == kind(days=1) and told == []
    assert (attempt("x"), attempt(days=[])) == bare
    assert told == [(("x",), {}, "TypeError"), ((), {"days": []}, "TypeError")]

    answer.append("another answer")
    assert attempt("x") == "another answer"
    answer[0] = LookupError("another error")
    assert attempt("x") == "LookupError: another error"

    del told[:], answer[:]
    before = sys.getrefcount(None), sys.getrefcount(TypeError), sys.getrefcount(bare)
    for _ in range(10000):
        attempt(bare)
    del told[:]
    gc.collect()
    after = sys.getrefcount(None), sys.getrefcount(TypeError), sys.getrefcount(bare)
    assert all(abs(a - b) < 1000 for a, b in zip(before, after)), (before, after)

    undo()
    assert attempt("x") == bare[0] and told == []

    undo = native.after_call(kind, place, tell, always=True)
    assert attempt(2) == kind(2) and told[0] == ((2,), {}, "NoneType")
    undo()
    undo()

    def work():
        for number in range(3000):
            attempt("x") if number % 2 else attempt(number)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(300):
        native.after_call(kind, place, tell, always=False)()
    for thread in threads:
        thread.join()

    taken = [native.after_call(kind, place, tell, always=False) for _ in range(201)]
    assert taken[-1] is None and taken[-2] is not None
    for undo in reversed(taken[:-1]):
        undo()
    assert attempt("x") == bare[0]
"""


FUNCTION = """
    import datetime
    from pytest_cudafork.compat.cpython_layout import place_of

    native = phantom.install("absent").native
    method, function = datetime.datetime.astimezone, datetime.datetime.fromtimestamp
    now = datetime.datetime(2000, 1, 1)
    known = {function: 1, method: 2}
    for target, good, bad in (
        (function, [(0,), {"tz": datetime.timezone.utc}], [("x",), {"tz": None}]),
        (method, [(now,), {"tz": datetime.timezone.utc}], [(now,), {"tz": 5}]),
    ):
        told = []

        def tell(args, kwargs, error):
            told.append((args, kwargs, type(error).__name__))

        bare = target(*good[0], **good[1])
        undo = native.after_call(target, place_of(target), tell, always=False)
        assert known[target] == hash(target) * 0 + known.get(target), "the hash is as before"
        for _ in range(100):
            assert target(*good[0], **good[1]) == bare
            try:
                target(*bad[0], **bad[1])
            except TypeError as error:
                assert error.__context__ is None
        given = bad[0] if target is function else bad[0][1:]
        assert told == [(given, bad[1], "TypeError")] * 100, told[0]
        undo()
        assert target(*good[0], **good[1]) == bare and known[target]
        assert len(told) == 100
"""


BEFORE = """
    import datetime, gc
    from pytest_cudafork.compat.cpython_layout import place_of

    native = phantom.install("absent").native
    kind, function = datetime.timedelta, datetime.datetime.fromtimestamp
    method, now = datetime.datetime.astimezone, datetime.datetime(2000, 1, 1)
    zone = {"tz": datetime.timezone.utc}
    for target, given, keywords in (
        (kind, (3,), {}), (method, (now,), zone), (function, (0,), zone),
    ):
        told, answer = [], []

        def tell(args, kwargs, error):
            told.append((args, kwargs or {}, error))
            if answer and isinstance(answer[0], Exception):
                raise answer[0]
            return answer[0] if answer else None

        bare = target(*given, **keywords)
        undo = native.before_call(target, place_of(target), tell)
        assert target(*given, **keywords) == bare
        assert told == [(given if target is not method else (), keywords, None)], told
        answer.append("an answer")
        assert target(*given, **keywords) == "an answer"
        answer[0] = LookupError("an error")
        try:
            target(*given, **keywords)
        except LookupError as error:
            assert error is answer[0]
        else:
            raise AssertionError("nothing was raised")
        del told[:], answer[:]
        before = sys.getrefcount(None), sys.getrefcount(bare)
        for _ in range(10000):
            target(*given, **keywords)
        del told[:]
        gc.collect()
        after = sys.getrefcount(None), sys.getrefcount(bare)
        assert all(abs(a - b) < 1000 for a, b in zip(before, after)), (before, after)
        undo()
        assert target(*given, **keywords) == bare and told == []

    def once(args, kwargs, error):
        undo()

    undo = native.before_call(kind, place_of(kind), once)
    assert [kind(1).days, kind(2).days] == [1, 2]

    def tell(args, kwargs, error):
        pass

    wrong = []

    def work():
        wrong.extend(number for number in range(3000) if kind(number).days != number)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(300):
        native.before_call(kind, place_of(kind), tell)()
    for thread in threads:
        thread.join()
    assert wrong == []
"""


TAKEN_BACK = """
    import datetime, functools, gc, weakref
    from pytest_cudafork.compat.cpython_layout import place_of

    native = phantom.install("absent").native
    now = datetime.datetime(2000, 1, 1)
    told = []

    def hook(target, name, always=False):
        def tell(args, kwargs, error):
            told.append(name)

        return native.after_call(target, place_of(target), tell, always=always)

    # taken back, and put in anew, by what the function itself calls
    method = datetime.datetime.astimezone

    class Zone(datetime.tzinfo):
        def utcoffset(self, when):
            undo()
            again.append(hook(method, "new"))
            raise LookupError

    again = []
    undo = hook(method, "old")
    try:
        now.astimezone(Zone())
    except LookupError:
        pass
    assert told == [], told
    again.pop()()

    # another thread is inside meanwhile
    inside, go_on = threading.Event(), threading.Event()

    class SlowZone(datetime.tzinfo):
        def utcoffset(self, when):
            inside.set()
            go_on.wait(200)
            raise LookupError

    def call():
        try:
            now.astimezone(SlowZone())
        except LookupError:
            told.append("failed")

    undo = hook(method, "old")
    thread = threading.Thread(target=call)
    thread.start()
    inside.wait(200)
    undo()
    del undo
    gc.collect()
    go_on.set()
    thread.join()
    assert told == ["failed"], told
    del told[:]

    # a class that was derived meanwhile keeps the pointer of its base as it was
    undo = hook(datetime.timedelta, "type", always=True)
    class Longer(datetime.timedelta):
        pass
    undo()
    others = [hook(functools.partial, "partial", True), hook(datetime.datetime, "datetime", True)]
    assert Longer(1) == datetime.timedelta(1) and told == [], told
    functools.partial(print)
    assert told == ["partial"], told
    del told[:]
    undo()  # is over: it takes back nobody else's
    datetime.datetime(2000, 1, 1)
    assert told == ["datetime"], told
    del told[:]
    for undo in others:
        undo()

    # what is called, and who is told, live as long as they are needed
    def make():
        class Told:
            def __call__(self, *args):
                told.append("told")

        target, tell = datetime.datetime.fromtimestamp, Told()
        return native.after_call(target, place_of(target), tell, always=True), weakref.ref(tell)

    undo, tell = make()
    gc.collect()
    assert tell() is not None
    undo()
    assert tell() is None

    # under another function at the same place nothing is told any more, and all of it works
    outer, inner = hook(method, "first"), hook(method, "second")
    outer()
    try:
        now.astimezone(5)
    except TypeError:
        told.append("raised")
    assert told == ["second", "raised"], told
    inner()
"""


FAULTY = """
    from pytest_cudafork.compat.cpython_layout import place_of

    native = phantom.install("absent").native
    result = [None]

    @ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    def body(self, arguments, keywords):
        return result[0]

    class Method(ctypes.Structure):
        _fields_ = [("name", ctypes.c_char_p), ("function", ctypes.c_void_p),
                    ("flags", ctypes.c_int), ("doc", ctypes.c_char_p)]

    method = Method(b"faulty", ctypes.cast(body, ctypes.c_void_p).value, 3, None)
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p] * 3
    faulty = make(ctypes.addressof(method), None, None)
    told = []
    def tell(*args):
        told.append(args)

    undo = native.after_call(faulty, place_of(faulty), tell, always=False)
    try:
        faulty(1, a=2)
    except SystemError as error:
        told.append("without an exception" in str(error) or "without setting" in str(error))
    assert told == [True], told
    undo()
"""

SCRIPTS = {"before": BEFORE, "taken back": TAKEN_BACK, "a fault of the function": FAULTY}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("script", SCRIPTS)
def test_what_becomes_of_calls_that_are_under_way(
    version: str, script: str, scripts: Scripts
) -> None:
    done = scripts.run(SCRIPTS[script], python=interpreter(version))
    assert done.status == 0, done.err


@pytest.mark.parametrize("version", VERSIONS)
def test_functions_and_methods_keep_their_hash(version: str, scripts: Scripts) -> None:
    done = scripts.run(FUNCTION, python=interpreter(version))
    assert done.status == 0, done.err


@pytest.mark.parametrize("version", VERSIONS)
def test_a_failing_call_is_told_and_the_function_stays_what_it_is(
    version: str, scripts: Scripts
) -> None:
    done = scripts.run(SCRIPT, python=interpreter(version))
    assert done.status == 0, done.err
