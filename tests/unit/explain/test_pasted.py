"""A pasted log: its messages, each once, and the frames that lead to each."""

from __future__ import annotations

import json
from multiprocessing import process, spawn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cudafork.explain import pasted
from pytest_cudafork.explain.messages import MESSAGES
from pytest_cudafork.explain.pasted import read

LOG = """\
Traceback (most recent call last):
  File "other.py", line 1, in <module>
ValueError: of something else
(VllmWorker pid=3) ERROR [x.py:5] Traceback (most recent call last):
(VllmWorker pid=3) ERROR [x.py:5]   File "/srv/engine/core.py", line 85, in __init__
(VllmWorker pid=3) ERROR [x.py:5]     self.run()
(VllmWorker pid=3) ERROR [x.py:5]     ^^^^^^^^^^
(VllmWorker pid=3) ERROR [x.py:5]   File "torch/cuda/__init__.py", line 398, in _lazy_init
(VllmWorker pid=3) ERROR [x.py:5] RuntimeError: Cannot re-initialize CUDA in forked subprocess
later: Cannot re-initialize CUDA in forked subprocess
RuntimeError: Engine core initialization failed. See root cause above.
"""


def test_a_message_has_the_traceback_that_ends_in_it() -> None:
    poisoned, consequence = read(LOG.splitlines())
    assert (poisoned.line, poisoned.times) == (9, 2)
    assert poisoned.text.startswith("(VllmWorker pid=3) ERROR")
    places = [(frame.filename, frame.lineno, frame.name) for frame in poisoned.frames]
    assert places == [
        ("torch/cuda/__init__.py", 398, "_lazy_init"),
        ("/srv/engine/core.py", 85, "__init__"),
    ]
    assert (consequence.line, consequence.times) == (11, 1)


def test_a_message_without_frames_gets_them_of_its_second_line() -> None:
    (hit,) = read(["x: Cannot re-initialize CUDA in forked subprocess, ", *LOG.splitlines()[:9]])
    assert hit.line == 1
    assert len(hit.frames) == 2


PLACES = [("/venv/torch/cuda/__init__.py", 305, "_lazy_init"), ("/app/work.py", 5, "work")]
SAID = "RuntimeError: Cannot re-initialize CUDA in forked subprocess"
PLAIN = f"""\
Traceback (most recent call last):
  File "/app/other.py", line 9, in other
ValueError: of something else
Traceback (most recent call last):
  File "/app/work.py", line 5, in work
    say("it's\\n")
  File "/venv/torch/cuda/__init__.py", line 305, in _lazy_init
    raise RuntimeError(
{SAID}
"""
COLORED = PLAIN.replace('"/', '"\x1b[35m/').replace("Cannot", "\x1b[0mCannot")
RICH = f"""\
╭──────────── Traceback (most recent call last) ────────────╮
│ /app/work.py:5 in work                                    │
│                                                           │
│ ❱ 5     torch.zeros(1).cuda()                             │
│ /venv/torch/cuda/__init__.py:305 in _lazy_init            │
╰───────────────────────────────────────────────────────────╯
{SAID}
"""
IPYTHON = f"""\
-----------------------------------------------------------
RuntimeError              Traceback (most recent call last)
File /app/work.py:5, in work(n)
----> 5     torch.zeros(1).cuda()

File /venv/torch/cuda/__init__.py:305, in _lazy_init()
--> 305     raise RuntimeError(

{SAID}
"""


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(PLAIN.splitlines(), id="plain"),
        pytest.param(RICH.splitlines(), id="rich"),
        pytest.param(IPYTHON.splitlines(), id="ipython"),
        pytest.param(
            [json.dumps({"log": f"{line}\n", "stream": "stderr"}) for line in PLAIN.splitlines()],
            id="docker's JSON lines",
        ),
        pytest.param(
            [json.dumps({"MESSAGE": line, "PRIORITY": "3"}) for line in PLAIN.splitlines()],
            id="JSON lines without line breaks",
        ),
        pytest.param(
            [json.dumps({"level": "ERROR", "msg": PLAIN}).replace('\\"', r"\u0022")],
            id="quotes by their number",
        ),
        pytest.param(
            [json.dumps({"msg": line}) for line in COLORED.splitlines()],
            id="colors in JSON lines",
        ),
        pytest.param([json.dumps({"level": "ERROR", "msg": PLAIN})], id="one JSON line"),
        pytest.param([json.dumps(json.dumps({"msg": PLAIN}))], id="JSON in JSON"),
        pytest.param([repr({"exc_info": PLAIN})], id="a literal of Python"),
    ],
)
def test_frames_are_known_however_they_are_written(lines: list[str]) -> None:
    (hit,) = read(lines)
    assert [(frame.filename, frame.lineno, frame.name) for frame in hit.frames] == PLACES
    assert "of something else" not in hit.text


@pytest.mark.parametrize("times", [1, 2])
def test_characters_that_json_writes_as_numbers_are_read(times: int) -> None:
    """As docker does with brackets, Python with what is not ASCII."""
    text = f'  File "/srv/café/\U0001f600.py", line 3, in <module>\n{SAID}\n'
    for _ in range(times):
        text = json.dumps(text).replace("<", r"\u003c").replace(">", r"\u003e")
    (hit,) = read([f'{{"log":{text}}}'])
    (frame,) = hit.frames
    assert (frame.filename, frame.lineno, frame.name) == ("/srv/café/\U0001f600.py", 3, "<module>")
    assert hit.text.startswith(SAID)


def test_half_of_a_character_that_json_writes_in_two_is_read() -> None:
    (hit,) = read([r'{"log":"  File \"/srv/\ud83d.py\", line 3, in f\n"}', SAID])
    assert [frame.lineno for frame in hit.frames] == [3]


def test_a_cell_of_a_notebook_is_a_place() -> None:
    (hit,) = read(["Traceback (most recent call last)", "Cell In[3], line 7", SAID])
    assert [(frame.filename, frame.lineno, frame.name) for frame in hit.frames] == [
        ("Cell In[3]", 7, "<module>")
    ]


def test_a_path_of_windows_is_no_line_break() -> None:
    (hit,) = read([LOG.splitlines()[0], r'  File "C:\new\x.py", line 3, in f', SAID])
    assert [frame.lineno for frame in hit.frames] == [3]


def test_frames_of_another_error_are_not_taken() -> None:
    (hit,) = read([*LOG.splitlines()[:3], "Cannot re-initialize CUDA in forked subprocess"])
    assert hit.frames == ()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("(EngineCore_DP0 pid=7) ERROR 08-12 12:01:02 [core.py:9] ", "(APIServer pid=8) "),
        ("[rank0]: ", "[rank1]: "),
        ("[gw0] ", "[gw1] "),
        ("engine-1  | ", "api-1     | "),
        ("[rank0]: ", ""),
        ("[pod/vllm-0/engine] ", "[pod/vllm-1/engine] "),
        ("Nov  3 18:00:01 host vllm[12]: ", "Nov  3 18:00:01 host vllm[13]: "),
        ("2026-11-30T18:00:01+0000 host vllm[12]: ", "2026-11-30T18:00:01+0000 host api[12]: "),
        ("2026-11-30 18:00:01,123 [pid 11] ERROR ", "2026-11-30 18:00:01,123 [pid 12] ERROR "),
        ("[ERROR/ForkProcess-1] ", "[ERROR/SpawnPoolWorker-2] "),
        ("engine-1  | (EngineCore pid=7) ", "engine-1  | (APIServer pid=8) "),
        ("Nov 30 18:00:01 host run[12]: [rank0]: ", "Nov 30 18:00:01 host run[12]: [rank1]: "),
        ("engine-1  | [rank0]: ", "engine-1  | "),
        ("0: ", "1: "),  # srun -l
        ("2: ", "12: "),
        ("0: ", ""),
        ("[1,0]<stderr>:", "[1,1]<stderr>:"),  # mpirun --tag-output
        ("[trainer0]:", "[trainer1]:"),  # torchrun, with a role
        ("[2026-11-30 18:00:01 TP0] ", "[2026-11-30 18:00:02 TP1] "),  # SGLang
        ("[2026-11-30 18:00:01 +0000] [12] [ERROR] ", "[2026-11-30 18:00:01 +0000] [13] [ERROR] "),
        ("18:00:01 web.1    | ", "18:00:01 worker.1 | "),  # honcho
        ("one.1.a3@host-1    | ", "one.2.b4@host-2    | "),  # docker service logs
        ("host-1: ", "host-2: "),  # pdsh
        ("engine-1  | 0: ", "engine-1  | 1: "),
        ("engine-1  | 0: ", "api-1     | 0: "),
    ],
)
def test_lines_of_several_processes_may_lie_between_each_other(one: str, other: str) -> None:
    lines = [
        f"{one}Traceback (most recent call last):",
        f'{one}  File "engine.py", line 1, in run',
        f"{other}Traceback (most recent call last):",
        f'{one}  File "worker.py", line 2, in init',
        f'{other}  File "server.py", line 3, in main',
        f"{one}RuntimeError: Cannot re-initialize CUDA in",
        f"{other}RuntimeError: Engine core initialization failed. See root cause above.",
        f"{one}forked subprocess",
    ]
    poisoned, consequence = read(lines)
    assert (poisoned.line, consequence.line) == (6, 7)
    assert [frame.filename for frame in poisoned.frames] == ["worker.py", "engine.py"]
    assert [frame.filename for frame in consequence.frames] == ["server.py"]


@pytest.mark.parametrize("all_have", ["", "engine-1  | ", "Nov 30 18:00:01 host vllm[12]: "])
def test_where_only_first_lines_have_a_prefix_the_others_are_taken_for_its_own(
    all_have: str,
) -> None:
    lines = [
        "(EngineCore pid=7) ERROR it has failed",
        "Traceback (most recent call last):",
        '  File "worker.py", line 2, in init',
        "(EngineCore pid=7) RuntimeError: Cannot re-initialize CUDA",
        "in forked subprocess",
    ]
    (hit,) = read([all_have + line for line in lines])
    assert [frame.filename for frame in hit.frames] == ["worker.py"]


def test_what_differs_from_line_to_line_is_no_process() -> None:
    """A prefix may count the lines, or stand before the first one of a traceback alone."""
    trace = PLAIN.splitlines()
    counted = [f"{number:04} ERROR {line}" for number, line in enumerate(trace, start=1)]
    (hit,) = read([*counted, *counted])
    assert [(frame.filename, frame.lineno, frame.name) for frame in hit.frames] == PLACES
    (hit,) = read([f"ERROR:root:{trace[3]}", *trace[4:-1], f"ERROR:root:{SAID}"])
    assert [(frame.filename, frame.lineno, frame.name) for frame in hit.frames] == PLACES
    timed = [f"2026-11-30 18:00:0{number},123 ERROR {line}" for number, line in enumerate(trace)]
    (hit,) = read(timed)
    assert [(frame.filename, frame.lineno, frame.name) for frame in hit.frames] == PLACES


def test_many_prefixes_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pasted, "_MOST_WRITERS", 3)
    trace = PLAIN.splitlines()[3:-1]
    lines = [f"{number}: {line}" for line in trace for number in range(3)]
    lines = [f"{number}: {line}" for number in range(3, 9) for line in trace] + lines
    (hit,) = read([*lines, f"2: {SAID}"])
    assert [(frame.filename, frame.lineno, frame.name) for frame in hit.frames] == PLACES


def test_lines_of_a_training_do_not_end_a_traceback() -> None:
    trace = PLAIN.splitlines()[3:]
    others = ["Iteration: 5", "Press q to Exit", "Epoch: 3"]
    lines = [line for each in trace for line in (each, *others)]
    (hit,) = read(lines)
    assert [(frame.filename, frame.lineno, frame.name) for frame in hit.frames] == PLACES


@pytest.mark.parametrize("escape", ["\x1b", "^[", "␛"])
def test_colors_are_left_out_however_they_are_written(escape: str) -> None:
    lines = PLAIN.replace('"/', f'{escape}[35m"/').replace('", line ', f'"{escape}[0m, line ')
    lines = lines.replace("RuntimeError", f"{escape}[1;35mRuntimeError{escape}[0m")
    (hit,) = read(lines.splitlines())
    assert [(frame.filename, frame.lineno, frame.name) for frame in hit.frames] == PLACES
    assert hit.text == SAID


@pytest.mark.parametrize(
    "end",
    [
        "KeyboardInterrupt",
        "SystemExit: 3",
        "StopIteration",
        "_queue.Empty",
        "requests.exceptions.Timeout: none in time",
        "ExceptionGroup: of two (2 sub-exceptions)",
        "0: KeyboardInterrupt",
    ],
)
def test_errors_with_other_names_end_a_traceback_too(end: str) -> None:
    lines = [LOG.splitlines()[0], '  File "other.py", line 1, in other', end]
    (hit,) = read([*lines, "init.cc:9 NCCL WARN Cuda failure 3 'initialization error'"])
    assert hit.frames == ()


def test_a_log_of_many_processes_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pasted, "_MOST_WRITERS", 3)
    lines = [f'(W pid={number})   File "w{number}.py", line 1, in f' for number in range(9)]
    (hit,) = read([*lines, "(W pid=8) Cannot re-initialize CUDA in forked subprocess"])
    assert [frame.filename for frame in hit.frames] == ["w8.py"]


def test_stacks_of_faulthandler_lead_to_no_message() -> None:
    lines = [
        "Thread 0x00007f0000000001 (most recent call first):",
        '  File "/app/server.py", line 12 in wait_for_requests',
        '  File "/app/main.py", line 29 in <module>',
        "CUDA error: initialization error",
    ]
    (hit,) = read(lines)
    assert hit.frames == ()


def test_a_syntax_error_is_in_a_module() -> None:
    lines = ['  File "/app/main.py", line 29', "CUDA error: initialization error"]
    (hit,) = read(lines)
    assert [(frame.lineno, frame.name) for frame in hit.frames] == [(29, "<module>")]


def test_the_short_form_of_pytest_is_read() -> None:
    lines = [
        "tests/test_a.py:7: in test_it",
        "    run()",
        "engine/core.py:9: in run",
        "E   RuntimeError: CUDA error: operation not permitted when stream is capturing",
    ]
    (hit,) = read(lines)
    assert [(frame.filename, frame.lineno) for frame in hit.frames] == [
        ("engine/core.py", 9),
        ("tests/test_a.py", 7),
    ]


def test_control_sequences_are_not_passed_on() -> None:
    (hit,) = read(['\x1b[31mFile "a\x1b[2J.py", line 1, in f', f"\x1b[31m{MESSAGES[0].words}"])
    assert "\x1b" not in hit.text + hit.frames[0].filename


def halves(words: str) -> tuple[str, str]:
    """Return a message as it is when it is broken at a blank near its middle."""
    some = words.split(" ")
    return " ".join(some[: len(some) // 2]), " ".join(some[len(some) // 2 :])


BOOTSTRAP = """\
Traceback (most recent call last):
  File "/w/job.py", line 9, in <module>
    process.start()
  File "/x/lib/python3.12/multiprocessing/spawn.py", line 164, in get_preparation_data
RuntimeError: 
        An attempt has been made to start a new process before the
        current process has finished its bootstrapping phase.
"""  # noqa: W291  (as Python writes it)


def test_the_message_of_python_that_is_broken_is_known_with_its_frames() -> None:
    (hit,) = read(BOOTSTRAP.splitlines(keepends=True))
    assert hit.message.kind.name == "spawn-without-main-guard"
    assert (hit.line, hit.times) == (6, 1)
    assert "before the current process has finished" in hit.text
    assert [frame.lineno for frame in hit.frames] == [164, 9]


def test_what_python_writes_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(RuntimeError) as error:
        spawn.get_preparation_data("child")
    (hit,) = read(f"RuntimeError: {error.value}".splitlines())
    assert hit.message.kind.name == "spawn-without-main-guard"


@pytest.mark.parametrize("prefix", ["", "E   ", "(VllmWorker pid=3) ERROR 11-23 [x.py:5] "])
def test_a_message_that_is_broken_into_lines_is_known(prefix: str) -> None:
    text = ["RuntimeError: Cannot re-initialize", "CUDA in forked", "subprocess. To use CUDA"]
    lines = ['  File "a.py", line 7, in f', *(f"{prefix}{line}" for line in text)]
    (hit,) = read([*lines, *lines])
    assert hit.message is MESSAGES[0]
    assert (hit.line, hit.times) == (2, 2)
    assert [frame.lineno for frame in hit.frames] == [7]


FORKED = "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with more words"


@pytest.mark.parametrize("prefix", ["", "E   ", "2025-11-23 10:00:00,123 | ERROR | worker-1 | "])
@pytest.mark.parametrize("width", [24, 40, 57, 80])
def test_lines_that_a_terminal_has_broken_are_read(prefix: str, width: int) -> None:
    line = f"{prefix}{FORKED}"
    parts = [line[place : place + width] for place in range(0, len(line), width)]
    (hit,) = read(["x\n", *(f"{part}\n" for part in parts)])
    assert (hit.message, hit.times) == (MESSAGES[0], 1)


def test_a_message_that_is_cut_everywhere_is_told_once_with_its_frames() -> None:
    lines = ['  File "a.py", line 7, in f\n', f"{FORKED[:50]}...\n", f"{FORKED[:48]}\n", "end\n"]
    (hit,) = read(lines)
    assert (hit.message, hit.line, hit.times) == (MESSAGES[0], 2, 1)
    assert [frame.lineno for frame in hit.frames] == [7]


def test_a_cut_message_adds_nothing_to_a_whole_one() -> None:
    (hit,) = read([f"FAILED a.py - {FORKED[:50]}...\n", f"{FORKED}\n", f"{FORKED[:55]}...\n"])
    assert (hit.line, hit.times) == (2, 1)


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_log_may_end_in_a_message(end: str) -> None:
    line = "RuntimeError: Cannot re-initialize CUDA in forked"
    assert len(read(["first\n", f"{line}{end}"])) == (end == "")
    assert len(read(["first\n", f"{line} sub{end}"])) == 1


def test_a_message_that_another_line_interrupts_is_not_made_up() -> None:
    assert read(["Cannot re-initialize CUDA in forked", "something else", "subprocess"]) == []


def test_colors_within_a_message_do_not_hide_it() -> None:
    (hit,) = read(["\x1b[1;31mRuntimeError\x1b[0m: Cannot re-initialize \x1b[35mCUDA\x1b[0m in "
                   "forked \x1b]8;;http://x\x07subprocess\x1b]8;;\x1b\\"])  # fmt: skip
    assert hit.text == "RuntimeError: Cannot re-initialize CUDA in forked subprocess"


LINES = st.one_of(
    st.text(),
    st.sampled_from([message.words for message in MESSAGES]),
    st.sampled_from([half for message in MESSAGES for half in halves(message.words)]),
    st.from_regex(r'\A  File "[^"]*", line \d+(, in .*)?\Z'),
)


@given(st.lists(LINES, max_size=20))
def test_any_text_can_be_read(lines: list[str]) -> None:
    hits = read(lines)
    assert len({hit.message for hit in hits}) == len(hits)
    assert all(1 <= hit.line <= len(lines) and hit.times >= 1 for hit in hits)


def test_a_message_that_is_there_many_times_is_looked_up_once_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = 0

    class Pattern:
        """Counts the lines in which a frame is looked for."""

        def search(self, line: str) -> None:
            nonlocal looks
            looks += 1

    monkeypatch.setattr(pasted, "_FRAME", Pattern())
    message = "RuntimeError: Cannot re-initialize CUDA in forked subprocess"
    (hit,) = pasted.read([message] * 300)
    assert (hit.times, hit.frames) == (300, ())
    assert looks == 300
