"""Tests of exceptions that come back as they were, taken apart where that is needed."""

from __future__ import annotations

import builtins
import pickle
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from pytest_cudafork.process.protocol import exception_parts

BaseGroup: Any = getattr(builtins, "BaseExceptionGroup", None)
Group: Any = getattr(builtins, "ExceptionGroup", None)


class OddError(Exception):
    """Its ``__init__`` does not take its ``args``."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(one + two)
        self.one = one


class WrongError(Exception):
    """Its pickle is of something else."""

    def __reduce__(self) -> tuple[type, tuple[str]]:
        return ValueError, ("another",)


def there_and_back(error: BaseException) -> Any:
    made = pickle.loads(exception_parts.dumps(error))
    assert type(made) is type(error)
    return made


def test_an_exception_is_rebuilt_of_its_parts() -> None:
    error = OddError(1, 2)
    error.__dict__["why"] = "because"
    made = there_and_back(error)
    assert (made.args, made.__dict__) == ((3,), {"one": 1, "why": "because"})


@pytest.mark.skipif(Group is None, reason="exception groups came with Python 3.11")
def test_those_inside_of_others_are_taken_apart_where_that_is_needed() -> None:
    missing = FileNotFoundError(2, "no such file", "it.txt")
    group = BaseGroup("group", [missing, OddError(1, 2), KeyboardInterrupt()])
    outer = Group("outer", [ValueError(OddError(3, 4)), WrongError("this")])
    made = there_and_back(BaseGroup("all", [group, outer]))
    (lost, odd, interrupt), (value, wrong) = (one.exceptions for one in made.exceptions)
    assert (type(lost), lost.filename) == (FileNotFoundError, "it.txt")
    assert (type(odd), odd.args, odd.one) == (OddError, (3,), 1)
    assert type(interrupt) is KeyboardInterrupt
    assert type(value.args[0]) is OddError
    assert (type(wrong), wrong.args) == (WrongError, ("this",))


class NoFileError(OSError):
    """Its file is held in C."""

    def __init__(self, path: str) -> None:
        super().__init__(2, "no such file", path)


class NoGrammarError(SyntaxError):
    """Its line is held in C."""

    def __init__(self, line: int) -> None:
        super().__init__("bad", ("it.py", line, 1, "text"))


class NoTextError(UnicodeDecodeError):
    """All of it is held in C."""

    def __init__(self) -> None:
        super().__init__("utf-8", b"ab\xff", 2, 3, "bad byte")


class NoModuleError(ImportError):
    """Its names are held in C."""

    def __init__(self, name: str, path: str) -> None:
        super().__init__("not there", name=name, path=path)


class DoneError(StopIteration):
    """Its value is held in C."""

    def __init__(self, value: int, more: int) -> None:
        super().__init__(value + more)


class SlotError(Exception):
    """Its code is in a slot."""

    __slots__ = ("code", "unset")

    def __init__(self, code: int) -> None:
        super().__init__("of a slot")
        self.code = code


class PrefixError(Exception):
    """It changes what it is given."""

    def __init__(self, text: str) -> None:
        super().__init__(f"it failed: {text}")


class KeywordError(Exception):
    """Its ``__new__`` does not take its ``args``."""

    def __new__(cls, *, code: int) -> KeywordError:
        return super().__new__(cls, code)

    def __init__(self, *, code: int) -> None:
        super().__init__(code)


KINDS: list[tuple[BaseException, tuple[str, ...]]] = [
    (NoFileError("it.txt"), ("errno", "strerror", "filename", "filename2")),
    (NoGrammarError(3), ("msg", "filename", "lineno", "offset", "text")),
    (NoTextError(), ("encoding", "object", "start", "end", "reason")),
    (NoModuleError("a", "b"), ("msg", "name", "path")),
    (DoneError(1, 2), ("value",)),
    (SlotError(4), ("code",)),
    (PrefixError("why"), ()),
    (KeywordError(code=5), ()),
    (AttributeError("no it", name="it", obj=threading.Lock()), ("name",)),
    (KeyError(1), ()),
]


@pytest.mark.parametrize(("error", "fields"), KINDS, ids=[type(one).__name__ for one, _ in KINDS])
def test_text_and_fields_come_back(error: BaseException, fields: Sequence[str]) -> None:
    error.__dict__["note"] = ["mine"]
    for one in (error, *([BaseGroup("all", [error])] if BaseGroup else [])):
        made = there_and_back(one)
        made = made if one is error else made.exceptions[0]
        assert (str(made), made.args, vars(made)) == (str(error), error.args, {"note": ["mine"]})
        assert [getattr(made, name) for name in fields] == [getattr(error, name) for name in fields]
        assert not hasattr(made, "unset")


if Group is not None:

    class CodeGroup(Group):  # type: ignore[misc]
        """Its ``__new__`` does not take what groups are made of."""

        def __new__(cls, errors: list[Exception], code: int) -> Any:
            made = super().__new__(cls, "of a code", errors)
            made.code = code
            return made

    def test_a_group_with_arguments_of_its_own_comes_back() -> None:
        made = there_and_back(CodeGroup([NoFileError("it.txt"), PrefixError("why")], 7))
        assert (made.code, made.message) == (7, "of a code")
        assert [str(one) for one in made.exceptions] == [
            "[Errno 2] no such file: 'it.txt'",
            "it failed: why",
        ]


class ToldHowError(Exception):
    """It leaves out what has no pickle."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()

    def __reduce__(self) -> tuple[type, tuple[str]]:
        return type(self), ("told",)


def test_an_exception_that_says_how_it_is_pickled_is_pickled_so() -> None:
    assert there_and_back(ToldHowError("made")).args == ("told",)


def test_a_slot_that_has_no_pickle_is_left_out() -> None:
    error = SlotError(4)
    error.code = threading.Lock()  # type: ignore[assignment]
    assert there_and_back(error).args == ("of a slot",)


def test_what_has_no_pickle_raises_what_says_so() -> None:
    with pytest.raises(TypeError, match="lock"):
        exception_parts.dumps(ValueError(threading.Lock()))


def test_one_that_holds_itself_comes_back() -> None:
    one, other = OddError(1, 2), OddError(3, 4)
    one.__dict__.update(me=one, other=other)
    other.__dict__["other"] = one
    made = there_and_back(one)
    assert made.me is made is made.other.other
    assert made.other.args == (7,)
