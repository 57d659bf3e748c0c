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
    undo = native.after_call(place, tell, always=False)
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

    undo = native.after_call(place, tell, always=True)
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
        native.after_call(place, tell, always=False)()
    for thread in threads:
        thread.join()

    taken = [native.after_call(place, tell, always=False) for _ in range(201)]
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
        undo = native.after_call(place_of(target), tell, always=False)
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
