"""Which program a process was running at a moment, out of its records."""

from __future__ import annotations

from typing import Any

from pytest_cudafork.observe.story.images import NOW, Images, moment_of

PID = 7


def record(kind: str, t: int, **fields: Any) -> dict[str, Any]:
    return {"k": kind, "id": f"{t}", "pid": PID, "t": t, **fields}


def test_each_exec_begins_another_one_and_ends_the_one_before() -> None:
    images = Images([record("process", 3), record("process", 9), record("touch", 4)])
    spans = [(image.begin, image.end) for image in map(images.of, [PID] * 3, (1, 5, 9))]
    assert spans == [(-NOW, 3), (3, 9), (9, NOW)]
    assert images.of(PID).begin == 9
    assert [images.of(PID, t).by_exec for t in (1, 5)] == [False, True]


def test_a_number_that_is_given_again_is_another_process() -> None:
    born = record("child", 5, parent=1)
    images = Images([record("process", 3), born])
    assert (images.of(PID).child, images.of(PID).by_exec) == (born, False)
    assert images.of(PID, 4).by_exec
    assert images.of(8) == (8, -NOW, NOW, None, False)


def test_a_watch_within_a_program_begins_none() -> None:
    images = Images([record("process", 3, began=False)])
    assert images.of(PID).begin == -NOW


def test_what_a_pth_file_does_before_the_watch_is_of_the_new_program() -> None:
    old, early = record("touch", 1), record("touch", 4)
    again = record("touch", 5, again=True)
    images = Images([old, early, again, record("process", 6, early=True)])
    assert images.of(PID).begin == 4
    assert not images.of(PID).holds(PID, 1)
    assert images.of(PID).holds(PID, 5)
    assert not images.of(PID).holds(8, 5)


def test_a_record_without_a_time_was_before_all_others() -> None:
    assert moment_of({"k": "child", "pid": 1}) == 0
