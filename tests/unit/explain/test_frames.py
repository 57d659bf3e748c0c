"""What the frames of a pasted traceback show, without the files that they name."""

from __future__ import annotations

import pytest

from pytest_cudafork.explain.frames import (
    at_import,
    imported_package,
    line_to_look_at,
    package_of,
    shown,
)
from pytest_cudafork.observe.story.touch import Frame

TORCH = Frame("torch/cuda/__init__.py", 398, "_lazy_init")
CLASS = Frame("vllm/v1/attention/flash_attn.py", 176, "FlashAttentionMetadataBuilder")
CORE = Frame("vllm/v1/engine/core.py", 714, "run_engine_core")
SCRIPT = Frame("/w/post.py", 12, "<module>")
CALL = Frame("/w/post.py", 7, "touch")
SITE = "/x/lib/python3.12/site-packages/"
FORK = Frame("/x/lib/python3.12/multiprocessing/popen_fork.py", 66, "_launch")


def test_a_class_body_is_known_by_its_name() -> None:
    frames = (TORCH, CLASS, CORE)
    assert at_import(frames) is CLASS
    assert line_to_look_at(frames) is CLASS
    assert imported_package(frames) == "vllm"
    assert shown(frames) == [
        "the line to look at: vllm/v1/attention/flash_attn.py:176 in FlashAttentionMetadataBuilder:"
        " a class body, which runs when its module is imported",
        "the error was raised at torch/cuda/__init__.py:398 in _lazy_init",
    ]


def test_a_module_body_is_at_import_unless_it_is_the_script() -> None:
    module = Frame(f"{SITE}cutlass/cute/__init__.py", 237, "<module>")
    assert at_import((TORCH, module, SCRIPT)) is module
    assert imported_package((TORCH, module, SCRIPT)) == "cutlass"
    assert at_import((TORCH, CALL, SCRIPT)) is None
    assert imported_package((TORCH, CALL, SCRIPT)) == ""
    assert line_to_look_at((TORCH, CALL, SCRIPT)) is CALL
    assert imported_package((Frame("/w/own/mod.py", 1, "<module>"), SCRIPT)) == "w"


@pytest.mark.parametrize("runpy", ["<frozen runpy>", "/x/lib/python3.10/runpy.py"])
def test_the_main_module_of_an_option_m_is_not_imported(runpy: str) -> None:
    started = (Frame(runpy, 88, "_run_code"), Frame(runpy, 198, "_run_module_as_main"))
    main = Frame(f"{SITE}vllm/entrypoints/api_server.py", 90, "<module>")
    assert at_import((TORCH, CALL, main, *started)) is None
    assert line_to_look_at((TORCH, CALL, main, *started)) is CALL
    assert line_to_look_at((TORCH, main, *started)) is main
    assert imported_package((TORCH, main, *started)) == ""
    assert at_import((CLASS, main, *started)) is None
    assert at_import((TORCH, CLASS, CORE, main, *started)) is CLASS


def test_what_an_option_m_imports_before_its_main_module_is_imported() -> None:
    package = Frame(f"{SITE}vllm/__init__.py", 3, "<module>")
    details = Frame("<frozen runpy>", 112, "_get_module_details")
    main = Frame("<frozen runpy>", 189, "_run_module_as_main")
    assert at_import((TORCH, package, details, main)) is package
    spawned = Frame("/x/lib/python3.12/multiprocessing/spawn.py", 297, "_fixup_main_from_path")
    assert at_import((TORCH, SCRIPT, Frame("<frozen runpy>", 88, "_run_code"), spawned)) is SCRIPT


@pytest.mark.parametrize("name", ["<module>", "__init__", "Made"])
def test_of_code_made_at_run_time_the_line_that_called_it_is_told(name: str) -> None:
    made = Frame("<string>", 1, name)
    assert at_import((TORCH, made, CALL, SCRIPT)) is None
    assert line_to_look_at((TORCH, made, CALL, SCRIPT)) is CALL
    module = Frame(f"{SITE}cutlass/cute/__init__.py", 237, "<module>")
    assert line_to_look_at((TORCH, made, module, SCRIPT)) is module
    assert line_to_look_at((TORCH, made)) is made


def test_libraries_that_only_pass_it_on_are_not_blamed() -> None:
    triton = Frame(f"{SITE}triton/runtime/driver.py", 8, "_create_driver")
    assert package_of(triton) == "triton"
    assert package_of(TORCH) == "torch"
    assert package_of(CALL) == ""
    assert line_to_look_at((triton, TORCH)) is None
    assert shown((triton, TORCH)) == ["the error was raised at triton/runtime/driver.py:8 in "
                                      "_create_driver"]  # fmt: skip


def test_a_torch_that_was_built_from_source_is_torch() -> None:
    tree = "/opt/pytorch/pytorch/torch/"
    inner = Frame(f"{tree}cuda/__init__.py", 398, "_lazy_init")
    other = Frame(f"{tree}random.py", 46, "manual_seed")
    assert line_to_look_at((inner, other, CALL, SCRIPT)) is CALL
    own = Frame("/srv/own/torch/cuda/train.py", 3, "train")
    assert line_to_look_at((inner, own, CALL, SCRIPT)) is own
    assert shown((inner, CALL))[0] == "the line to look at: /w/post.py:7 in touch"


@pytest.mark.parametrize(
    ("filename", "words"),
    [
        ("/x/lib/python3.12/multiprocessing/popen_fork.py", "was forked by multiprocessing ("),
        ("/x/lib/python3.12/multiprocessing/spawn.py", "started by spawn"),
        (f"{SITE}torch/utils/data/_utils/worker.py", "worker of a DataLoader"),
        (f"{SITE}celery/concurrency/prefork.py", "Celery"),
    ],
)
def test_how_the_process_began_is_read_off_its_outer_frames(filename: str, words: str) -> None:
    lines = shown((CALL, Frame(filename, 66, "f"), SCRIPT))
    assert words in lines[-1]


def test_no_frames_show_nothing() -> None:
    assert shown(()) == []
    assert imported_package(()) == ""
