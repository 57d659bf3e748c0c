"""Which line of the project a problem is shown at, and the way to it."""

from __future__ import annotations

from pathlib import Path

from pytest_cudafork.documents.problem import (
    RULES,
    Place,
    is_in,
    path_in,
    place_in,
    place_of_touch,
    steps_of_touch,
)
from pytest_cudafork.observe.story.touch import Frame, Touch

IMPORT = ["<frozen importlib._bootstrap>", 1, "_call_with_frames_removed", 3]
LIBRARY = "/p/.venv/lib/python3.11/site-packages/flash/ops.py"


def touch(*stack: list[object]) -> Touch:
    """Return a touch with this stack."""
    return Touch.from_record({"pid": 1, "entry": "cuInit", "stack": stack})


def test_a_file_is_the_projects_own_unless_it_is_installed() -> None:
    assert is_in("/p", "/p/a.py")
    assert is_in("/p/", "/p/a.py")
    assert not is_in("/p", "/pq/a.py")
    assert not is_in("/p", LIBRARY)
    # the checkout itself may lie in such a folder
    assert is_in("/x/site-packages/p", "/x/site-packages/p/a.py")


def test_a_folder_that_is_named_by_a_link_is_the_one_to_which_it_leads(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    for root, file in ((link, real / "a.py"), (real, link / "a.py")):
        assert is_in(str(root), str(file))
        assert path_in(str(root), str(file)) == "a.py"
        assert place_in(str(root), [Frame(str(file), 3, "f")]) == Place(str(file), 3)
        assert not is_in(str(root), f"{file.parent}/lib/site-packages/a.py")
    assert not is_in(str(link), str(tmp_path / "a.py"))
    for odd in ("<string>", "a.py", "/a\0.py", "/\ud800.py"):
        assert not is_in(str(link), odd)


def test_the_line_of_the_project_that_is_nearest_is_named() -> None:
    frames = [Frame(LIBRARY, 9, "f"), Frame("/p/a.py", 0, "g"), Frame("/p/b.py", 3, "h")]
    assert place_in("/p", frames) == Place("/p/a.py", 1)
    assert place_in("/q", frames) is None
    inside = touch([LIBRARY, 9, "<module>", 0], IMPORT, ["/p/a.py", 4, "<module>", 0], IMPORT)
    assert place_of_touch("/p", inside) == Place("/p/a.py", 4)
    own = touch(["/p/a.py", 4, "<module>", 0], IMPORT, ["/p/b.py", 5, "<module>", 0], IMPORT)
    assert place_of_touch("/p", own) == Place("/p/a.py", 4)
    assert place_of_touch("/p", touch()) is None


def test_the_steps_go_from_the_outermost_import_to_the_touch() -> None:
    inside = touch([LIBRARY, 9, "<module>", 0], IMPORT, ["/p/a.py", 4, "<module>", 0], IMPORT)
    (first, words), (last, end) = steps_of_touch(inside)
    assert (first, last) == (Place("/p/a.py", 4), Place(LIBRARY, 9))
    assert words.startswith("imports")
    assert end == "cuInit initializes CUDA"
    assert steps_of_touch(touch()) == ()
    assert steps_of_touch(touch(["<string>", 1, "f", 1])) == ()


def test_each_rule_says_what_it_is_and_what_to_do() -> None:
    for name, (what, advice) in RULES.items():
        assert name == name.lower()
        assert what.endswith(".")
        assert advice
