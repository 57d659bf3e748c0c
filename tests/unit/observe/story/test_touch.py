"""The touch record: the culprit line and the import chain, from stacks as they really occur."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cudafork.observe.story.advice import advise, what_the_line_is
from pytest_cudafork.observe.story.paths import short_path
from pytest_cudafork.observe.story.touch import (
    Frame,
    Touch,
    culprit_of,
    first_import_body,
    frames_from,
    import_chain_of,
    way_of,
)
from pytest_cudafork.observe.story.words import touch_lines

SITE = "/venv/lib/python3.11/site-packages"
FUNCTION = 3
BODY = 0
IMPORTLIB = Frame("<frozen importlib._bootstrap>", 241, "_call_with_frames_removed", FUNCTION)


def frame(path: str, line: int, name: str, flags: int = FUNCTION) -> Frame:
    return Frame(path, line, name, flags)


def touch_with(frames: tuple[Frame, ...], **fields: object) -> Touch:
    record = {
        "id": "1-1",
        "pid": 1,
        "t": 1,
        "entry": "cuInit",
        "stack": [[f.filename, f.lineno, f.name, f.flags] for f in frames],
        **fields,
    }
    return Touch.from_record(record)


def test_the_culprit_is_the_innermost_body_that_is_being_imported() -> None:
    frames = (
        frame(f"{SITE}/torch/cuda/__init__.py", 600, "get_device_capability"),
        frame("/src/engine/fa_utils.py", 56, "get_flash_attn_version"),
        frame("/src/engine/flash_attn.py", 175, "FlashAttentionMetadataBuilder", BODY),
        frame("/src/engine/flash_attn.py", 150, "<module>", BODY),
        IMPORTLIB,
        frame("/src/engine/__init__.py", 3, "<module>", BODY),
        IMPORTLIB,
        frame("/src/test_engine.py", 1, "<module>", BODY),
        frame(f"{SITE}/_pytest/assertion/rewrite.py", 185, "AssertionRewritingHook.exec_module"),
        IMPORTLIB,
        frame(f"{SITE}/_pytest/python.py", 500, "importtestmodule"),
        frame("/venv/bin/pytest", 8, "<module>", BODY),
    )
    touch = touch_with(frames)
    assert touch.where == "/src/engine/flash_attn.py:175"
    assert touch.at_import
    assert [(f.filename, f.lineno) for f in touch.import_chain] == [
        ("/src/test_engine.py", 1),
        ("/src/engine/__init__.py", 3),
        ("/src/engine/flash_attn.py", 175),
    ]


def test_a_script_and_the_pytest_command_are_not_imports() -> None:
    frames = (
        frame(f"{SITE}/torch/cuda/__init__.py", 180, "is_available"),
        frame("/src/test_a.py", 7, "test_a"),
        frame(f"{SITE}/pluggy/_callers.py", 121, "_multicall"),
        frame("/venv/bin/pytest", 8, "<module>", BODY),
    )
    touch = touch_with(frames)
    assert touch.where == "/src/test_a.py:7"
    assert not touch.at_import
    assert touch.import_chain == ()


def test_code_that_a_tool_executes_is_not_an_import() -> None:
    frames = (
        frame("/src/test_a.py", 7, "test_a"),
        frame(f"{SITE}/xdist/remote.py", 400, "<module>", BODY),
        frame(f"{SITE}/execnet/gateway_base.py", 1291, "executetask"),
        frame("<string>", 8, "<module>", BODY),
    )
    assert culprit_of(frames) == frames[0]


@pytest.mark.parametrize(
    ("made", "line"),
    [
        ("<string>", 2),
        ("<attrs generated init app.Config>", 3),
        ("<eval_with_key>.12", 5),
        ("/src/template.html", 0),
    ],
)
@pytest.mark.parametrize("name", ["__init__", "<module>"])
def test_code_without_a_line_that_could_be_changed_is_passed_over(
    made: str, line: int, name: str
) -> None:
    flags = BODY if name == "<module>" else FUNCTION
    inner = (
        frame(f"{SITE}/torch/cuda/__init__.py", 180, "is_available"),
        frame(made, line, name, flags),
    )
    called = (*inner, frame("/src/app.py", 7, "start"))
    assert culprit_of(called) == called[-1]
    imported = (*inner, frame("/src/app.py", 7, "<module>", BODY), IMPORTLIB)
    assert culprit_of(imported) == imported[2]
    assert touch_with(imported).at_import
    assert culprit_of((*inner, IMPORTLIB)) == inner[1], "nothing else is there"


@pytest.mark.parametrize(
    "typed", ["<stdin>", "<doctest app.f[0]>", "<ipython-input-1-0a>", "<python-input-0>"]
)
def test_code_that_somebody_has_typed_is_named(typed: str) -> None:
    frames = (
        frame(f"{SITE}/torch/cuda/__init__.py", 180, "is_available"),
        frame(typed, 1, "<module>", BODY),
        frame(f"{SITE}/IPython/core/interactiveshell.py", 3500, "run_code"),
    )
    assert culprit_of(frames) == frames[1]


def test_an_import_hook_that_touches_is_not_native_code(tmp_path: Path) -> None:
    module = tmp_path / "m.py"
    module.write_text("import other\n")
    importing = (frame(str(module), 1, "<module>", BODY), IMPORTLIB)
    assert "native code" in what_the_line_is(touch_with(importing))
    assert "native code" in what_the_line_is(touch_with((IMPORTLIB, *importing)))
    hook = frame("/src/hooks.py", 3, "find_spec")
    told = what_the_line_is(touch_with((hook, IMPORTLIB, *importing)))
    assert told.startswith("import of other,")
    assert "native" not in told


@pytest.mark.parametrize("name", ["_call", "start"])
def test_the_frame_that_stands_in_for_a_caller_is_left_out(name: str) -> None:
    ours = frame(f"{SITE}/pytest_cudafork/observe/base/hooking.py", 160, "_call_as")
    caller = frame("/src/app.py", 7, "start")
    frames = (frame("/src/app.py", 7, name), ours, ours, caller)
    found = frames_from([[f.filename, f.lineno, f.name, f.flags] for f in frames])
    assert found == (caller,)


def test_the_cuda_libraries_and_the_standard_library_are_passed_over() -> None:
    frames = (
        frame("/usr/lib/python3.11/ctypes/__init__.py", 376, "__getattr__"),
        frame(f"{SITE}/cupy/cuda/device.py", 10, "f"),
        frame(f"{SITE}/numba/cuda/driver.py", 10, "g"),
        frame(f"{SITE}/vllm/platforms/cuda.py", 33, "probe"),
    )
    assert culprit_of(frames) == frames[3]


def test_when_nothing_else_is_left_the_innermost_frame_is_the_culprit() -> None:
    frames = (frame(f"{SITE}/torch/cuda/__init__.py", 1, "f"),)
    assert culprit_of(frames) == frames[0]
    assert culprit_of(()) is None


@pytest.mark.parametrize("by_import", [False, True])
def test_who_has_called_pytest_is_not_blamed_for_what_a_session_does(by_import: bool) -> None:
    frames = (
        frame(f"{SITE}/pluggy/_callers.py", 121, "_multicall"),
        frame(f"{SITE}/_pytest/runner.py", 144, "runtestprotocol"),
        frame(f"{SITE}/pluggy/_callers.py", 121, "_multicall"),
        frame(f"{SITE}/_pytest/config/__init__.py", 286, "main"),
        frame("/src/run_tests.py", 8, "<module>", BODY),
        *((frame("<frozen importlib._bootstrap>", 241, "_call"),) if by_import else ()),
        frame("/venv/bin/pytest", 8, "<module>", BODY),
    )
    assert culprit_of(frames) == frames[1]
    assert first_import_body(frames) is None
    mine = frame("/src/test_a.py", 7, "test_a")
    nested = (frames[0], frames[3], mine, *frames[1:])
    assert culprit_of(nested) == mine, "a test that runs a session in its process"


def test_who_has_called_pytest_is_in_no_chain_of_imports() -> None:
    frames = (
        frame("/src/test_a.py", 7, "<module>", BODY),
        frame("<frozen importlib._bootstrap>", 241, "_call"),
        frame(f"{SITE}/_pytest/config/__init__.py", 286, "main"),
        frame("<frozen importlib._bootstrap>", 241, "_call"),
        frame("/venv/bin/run", 8, "<module>", BODY),
    )
    assert import_chain_of(frames) == frames[:1]


RUNPY = frame("<frozen runpy>", 88, "_run_code")


@pytest.mark.parametrize("between", [(), (RUNPY,), (frame("<string>", 1, "<module>", BODY),)])
@pytest.mark.parametrize("runner", ["<module>", "run_scripts"])
def test_the_line_that_runs_a_file_by_exec_or_runpy_is_on_the_way(
    between: tuple[Frame, ...], runner: str
) -> None:
    touching = frame("/src/kernels.py", 3, "<module>", BODY)
    script = frame("/src/script.py", 7, "<module>", BODY)
    runs = frame("/src/plugin.py", 2, runner, BODY if runner == "<module>" else -1)
    outer = frame("/src/main.py", 1, "<module>", BODY)
    frames = (touching, IMPORTLIB, script, *between, runs, IMPORTLIB, outer)
    assert import_chain_of(frames) == (outer, script, touching)
    assert way_of(frames) == ((outer, False), (runs, True), (script, False), (touching, False))


@pytest.mark.parametrize("how", ["exec", "runpy"])
def test_a_file_that_a_module_executes_is_told_with_the_line_that_does(
    how: str, tmp_path: Path
) -> None:
    (tmp_path / "kernels.py").write_text("import touching\ntouching.touch()\n")
    (tmp_path / "script.py").write_text("import kernels\n")
    (tmp_path / "touching.py").write_text(
        "import json, sys\n"
        "def touch():\n"
        "    frame, stack = sys._getframe(), []\n"
        "    while frame:\n"
        "        code = frame.f_code\n"
        "        stack.append([code.co_filename, frame.f_lineno, code.co_name, code.co_flags])\n"
        "        frame = frame.f_back\n"
        "    print(json.dumps(stack))\n"
    )
    line = {
        "exec": "exec(compile(open('script.py').read(), 'script.py', 'exec'))",
        "runpy": "import runpy; runpy.run_path('script.py')",
    }[how]
    (tmp_path / "plugin.py").write_text(f"\n{line}\n")
    command = [sys.executable, "-c", "import plugin"]
    ran = subprocess.run(
        command, cwd=tmp_path, check=True, capture_output=True, text=True, timeout=300
    )
    stack = json.loads(ran.stdout)
    told = "\n".join(touch_lines(Touch.from_record({"id": "1-1", "pid": 1, "stack": stack})))
    way = told.partition("  reached through:\n")[2].split("\n")[:3]
    places = [each.split()[0].rpartition("/")[2] for each in way]
    assert places == ["<string>:1", "plugin.py:2", "script.py:1"]
    assert "kernels.py:2: module body" in told


def test_the_line_that_executes_the_culprits_file_is_on_the_way() -> None:
    script = frame("/src/script.py", 7, "Kernel", BODY)
    body = frame("/src/script.py", 5, "<module>", BODY)
    runs = frame("/src/plugin.py", 2, "<module>", BODY)
    assert way_of((script, body, runs, IMPORTLIB)) == ((runs, True), (script, False))
    assert way_of((script, body, IMPORTLIB, runs)) == ((runs, False), (script, False))


def test_a_lazy_import_inside_a_function_keeps_the_function_in_the_chain() -> None:
    frames = (
        frame("/src/backend.py", 4, "<module>", BODY),
        IMPORTLIB,
        frame("/src/engine.py", 30, "load_backend"),
        frame("/src/test_e.py", 9, "test_e"),
    )
    assert [f.name for f in import_chain_of(frames)] == ["load_backend", "<module>"]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("class Builder:\n    x = probe()  # here", "class body of Builder"),
        ("class Builder:\n    x: probe()  # here", "annotation in the class body of Builder"),
        ("def f(device=probe()):  # here\n    pass", "default argument of f()"),
        ("@probe()  # here\ndef f(): pass", "decorator of f"),
        ("SMS = probe()  # here", "module constant SMS"),
        ("if probe():  # here\n    pass", "module body"),
        ("probe()  # here", "module body"),
    ],
)
def test_the_line_is_described_by_what_it_is(tmp_path: Path, source: str, words: str) -> None:
    module = tmp_path / "m.py"
    module.write_text(f"def probe(): pass\n{source}\n")
    line = next(n for n, text in enumerate(module.read_text().split("\n"), 1) if "# here" in text)
    name = "Builder" if "class Builder" in source else "<module>"
    touch = touch_with((frame(str(module), line, name, BODY), IMPORTLIB))
    assert words in what_the_line_is(touch)
    assert advise(touch)


def test_flags_that_are_unknown_are_read_from_the_source(tmp_path: Path) -> None:
    module = tmp_path / "m.py"
    module.write_text("class A:\n    x = 1\n\n\ndef f():\n    return 1\n")
    assert Frame(str(module), 2, "A").is_body
    assert not Frame(str(module), 6, "f").is_body
    assert Frame(str(module), 1, "<module>").is_body
    assert not Frame("/gone.py", 1, "f").is_body


def test_a_reexport_in_an_init_is_named_in_the_advice(tmp_path: Path) -> None:
    init = tmp_path / "ops" / "__init__.py"
    leaf = tmp_path / "ops" / "leaf.py"
    frames = (
        frame(str(leaf), 2, "<module>", BODY),
        IMPORTLIB,
        frame(str(init), 1, "<module>", BODY),
        IMPORTLIB,
    )
    text = "\n".join(advise(touch_with(frames)))
    assert "ops/__init__.py:1 re-exports" in text
    assert "import the leaf module" in text


def test_the_rendering_shows_the_source_line_and_the_way_to_it(tmp_path: Path) -> None:
    module = tmp_path / "pkg.py"
    module.write_text("import torch\nOK = torch.cuda.is_available()\n")
    frames = (
        frame(f"{SITE}/torch/cuda/__init__.py", 180, "is_available"),
        frame(str(module), 2, "<module>", BODY),
        IMPORTLIB,
        frame(str(tmp_path / "test_a.py"), 1, "<module>", BODY),
    )
    text = "\n".join(touch_lines(touch_with(frames, phase="collect test_a.py")))
    assert "pkg.py:2: module constant OK, evaluated at import" in text
    assert "> OK = torch.cuda.is_available()" in text
    assert "torch/cuda/__init__.py:180 in is_available" in text
    assert "test_a.py:1" in text
    assert "PYTORCH_NVML_BASED_CUDA_CHECK=1" in text


def test_a_touch_without_a_stack_still_says_who_called() -> None:
    text = "\n".join(touch_lines(touch_with((), library="/x/libfoo.so.2")))
    assert "cuInit called by libfoo.so.2" in text


def test_paths_are_shortened_only_as_far_as_they_stay_clear() -> None:
    assert short_path(f"{SITE}/torch/cuda/__init__.py") == "torch/cuda/__init__.py"
    assert short_path("/src/a/b.py", base="/src") == "a/b.py"
    assert short_path("/srcs/b.py", base="/src") == "/srcs/b.py"
    assert short_path("/usr/lib/python3.11/ctypes/x.py", base="/s") == "python3.11/ctypes/x.py"


def test_a_real_import_gives_a_real_culprit(tmp_path: Path) -> None:
    (tmp_path / "inner.py").write_text(
        "import probe\n\nclass Meta:\n    value = [probe.take() for _ in range(1)]\n"
    )
    (tmp_path / "outer.py").write_text("def load():\n    import inner\n\n\nload()\n")
    (tmp_path / "probe.py").write_text(
        textwrap.dedent(
            """
            import sys
            from pytest_cudafork.observe.base.stacks import stack_of
            from pytest_cudafork.observe.story.touch import culprit_of, frames_from, import_chain_of

            def take():
                frames = frames_from(stack_of(sys._getframe(1)))
                culprit = culprit_of(frames)
                print(culprit.lineno, culprit.name, [f.name for f in import_chain_of(frames)])
            """
        )
    )
    out = subprocess.run(
        [sys.executable, "-c", "import outer"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert out.strip() == "4 Meta ['<module>', 'load', 'Meta']"


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["/a.py", "<frozen importlib._bootstrap>", f"{SITE}/torch/x.py", ""]),
            st.integers(0, 5),
            st.sampled_from(["<module>", "f", "A"]),
            st.sampled_from([-1, 0, 3]),
        ),
        max_size=12,
    )
)
def test_every_stack_has_a_culprit_from_itself(stack: list[tuple[str, int, str, int]]) -> None:
    frames = frames_from(stack)
    culprit = culprit_of(frames)
    assert (culprit in frames) if frames else (culprit is None)
    chain = import_chain_of(frames)
    assert not chain or chain[-1] == culprit
