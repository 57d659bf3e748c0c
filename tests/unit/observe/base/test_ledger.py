"""The ledger: order, torn lines, many writers."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cudafork.compat import unpatched
from pytest_cudafork.observe.base import ledger as ledgers
from pytest_cudafork.observe.base.ledger import Ledger, LedgerError
from tests.support.full_disk import full_disk

NOT_ALLOWED = (
    "a process of the session could not write to the ledger: it had no descriptor left, or a limit "
    "(RLIMIT_FSIZE) or a hook of the audit has forbidden it"
)
TAKES_NONE = r"File too large|No space left"


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger(str(tmp_path / "ledger.jsonl"))
    made.create()
    return made


def test_records_come_back_in_the_order_in_which_they_were_written(ledger: Ledger) -> None:
    for number in range(5):
        ledger.append("touch", number=number)
    assert [record["number"] for record in ledger.reader().new()] == list(range(5))


def test_a_reader_gives_every_record_once(ledger: Ledger) -> None:
    reader = ledger.reader()
    ledger.append("touch", number=1)
    assert len(reader.new()) == 1
    assert reader.new() == []
    ledger.append("touch", number=2)
    assert [record["number"] for record in reader.new()] == [2]


def test_a_writer_that_died_in_the_middle_of_its_line_loses_that_line_alone(ledger: Ledger) -> None:
    ledger.append("touch", number=1)
    with open(ledger.path, "ab") as file:
        file.write(b'\n{"k": "touch", "pid": 7, "sta')
    ledger.append("touch", number=2)
    reader = ledger.reader()
    assert [record["number"] for record in reader.new()] == [1, 2]
    assert reader.torn == 1


def test_a_line_that_is_still_being_written_is_read_when_it_is_whole(ledger: Ledger) -> None:
    line = b"\n" + json.dumps({"k": "touch", "id": "1-1", "pid": 1, "number": 3}).encode()
    reader = ledger.reader()
    with open(ledger.path, "ab") as file:
        file.write(line[:10])
        file.flush()
        assert reader.new() == []
        file.write(line[10:])
    assert [record["number"] for record in reader.new()] == [3]
    assert reader.torn == 0


def test_records_carry_the_test_and_the_owner_from_the_environment(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "test_x.py::test_a (call)")
    monkeypatch.setenv("_CUDAFORK_OWNER", "42")
    ledger.append("touch")
    (record,) = ledger.reader().new()
    assert (record["test"], record["owner"], record["pid"]) == (
        "test_x.py::test_a (call)",
        "42",
        os.getpid(),
    )


def test_records_of_one_tick_of_the_clock_are_told_apart(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledgers, "time", SimpleNamespace(monotonic_ns=lambda: 5))
    ids = [ledger.append("touch") for _ in range(3)]
    assert len(set(ids)) == 3
    assert [record["id"] for record in ledger.reader().new()] == ids


def test_many_threads_and_processes_write_whole_lines(ledger: Ledger) -> None:
    payload = "x" * 9000  # longer than a page

    def write() -> None:
        for number in range(20):
            ledger.append("touch", number=number, payload=payload)

    threads = [threading.Thread(target=write) for _ in range(3)]
    pids = []
    for _ in range(2):
        pid = os.fork()
        if pid == 0:
            try:
                write()
            finally:
                os._exit(0)
        pids.append(pid)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for pid in pids:
        os.waitpid(pid, 0)
    reader = ledger.reader()
    assert len(reader.new()) == 100
    assert reader.torn == 0


def test_a_ledger_that_is_gone_reads_as_empty(tmp_path: Path) -> None:
    assert Ledger(str(tmp_path / "never")).reader().new() == []


def test_a_ledger_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        Ledger(str(tmp_path / "no" / "ledger")).create()


@given(st.lists(st.binary(max_size=60), max_size=8))
def test_nonsense_in_the_file_is_never_an_error(chunks: list[bytes]) -> None:
    reader = Ledger("/nonexistent").reader()
    for chunk in chunks:
        for record in reader._parse(chunk):
            assert "k" in record


def test_a_ledger_that_is_whole_says_nothing(ledger: Ledger) -> None:
    ledger.append("touch")
    assert ledger.reader().damage() == []


def limited(kind: int, most: int, work: Callable[[], object]) -> int:
    """Do work in a process that may have so much of a resource; return the number of its error."""
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(kind, (most, most))
        try:
            work()
        except OSError as error:
            os._exit(error.errno or 1)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("taken", [0, 1, 40])
def test_a_record_that_the_disk_cuts_or_refuses_is_known_to_be_lost(
    taken: int, ledger: Ledger
) -> None:
    ledger.append("touch", number=1)
    size = os.path.getsize(ledger.path)
    ended = limited(  # as on a full disk
        resource.RLIMIT_FSIZE, size + taken, lambda: ledger.append("touch", number=2)
    )
    assert ended == (errno.ENOSPC if taken else errno.EFBIG)
    ledger.append("touch", number=3)
    reader = ledger.reader()
    assert [record["number"] for record in reader.new()] == [1, 3]
    assert "could not write a record: is the disk full?" in reader.damage()[0]


@pytest.mark.parametrize("room", [0, 1, 40])
def test_a_ledger_that_a_full_disk_does_not_take_is_named_and_not_left(
    room: int, tmp_path: Path
) -> None:
    path = tmp_path / "new.jsonl"
    with full_disk(room), pytest.raises(OSError, match=TAKES_NONE) as failed:
        Ledger(str(path)).create()
    assert failed.value.filename == str(path)
    assert not path.exists()


@pytest.mark.parametrize("room", [0, 1, 40])
def test_a_ledger_that_a_full_disk_does_not_take_anew_can_be_begun_later(
    room: int, ledger: Ledger
) -> None:
    with full_disk(room), pytest.raises(OSError, match=TAKES_NONE):
        Ledger(ledger.path).create()
    ledger.create()
    ledger.append("touch", number=1)
    assert [record["number"] for record in ledger.reader().new()] == [1]


def test_a_record_that_the_disk_refuses_is_told_with_the_name_of_the_ledger(ledger: Ledger) -> None:
    with full_disk(), pytest.raises(OSError, match="File too large") as failed:
        ledger.append("touch")
    assert failed.value.filename == ledger.path


def test_a_record_of_a_process_that_has_no_descriptor_left_is_known_to_be_lost(
    ledger: Ledger,
) -> None:
    # What is open stays open; and a file that is opened takes the lowest free number.
    ended = limited(resource.RLIMIT_NOFILE, 0, lambda: ledger.append("touch"))
    assert ended == errno.EMFILE
    assert ledger.reader().damage() == [NOT_ALLOWED]
    ledger.create()
    assert ledger.reader().damage() == []
    assert os.stat(ledger.path).st_mode & 0o777 == 0o600


@pytest.mark.parametrize("most", [0, 9])
def test_a_record_of_a_process_that_may_write_no_files_is_known_to_be_lost(
    most: int, ledger: Ledger
) -> None:
    ended = limited(resource.RLIMIT_FSIZE, most, lambda: ledger.append("touch"))
    assert ended == errno.EFBIG
    assert ledger.reader().damage() == [NOT_ALLOWED]


@pytest.mark.parametrize("error", [PermissionError, RuntimeError])
def test_a_record_that_a_hook_of_the_audit_forbids_is_known_to_be_lost(
    error: type[Exception], ledger: Ledger
) -> None:
    code = (
        "import sys\nfrom pytest_cudafork.observe.base.ledger import Ledger\n"
        "ledger, error = Ledger(sys.argv[1]), getattr(__builtins__, sys.argv[2])\n"
        "def forbid(event, args):\n"
        "    if event == 'open':\n        raise error\n"
        "sys.addaudithook(forbid)\n"
        "try:\n    ledger.append('touch')\n"
        "except error:\n    assert ledger.reader().new() == []\n"
        "else:\n    sys.exit(1)\n"
    )
    subprocess.run([sys.executable, "-c", code, ledger.path, error.__name__], check=True)
    assert ledger.reader().damage() == [NOT_ALLOWED]


@pytest.mark.parametrize("mode", [0o600, 0o666])
def test_the_mark_of_a_process_without_descriptors_is_added_to_the_mode(
    mode: int, ledger: Ledger
) -> None:
    os.chmod(ledger.path, mode)
    limited(resource.RLIMIT_NOFILE, 0, ledger.mark_loss)
    assert os.stat(ledger.path).st_mode & 0o777 == mode | 0o100


@pytest.mark.parametrize("kind", ["file", "link", "folder", "nothing"])
def test_what_has_come_in_the_place_of_the_ledger_keeps_its_mode(
    kind: str, ledger: Ledger, tmp_path: Path
) -> None:
    path, other = Path(ledger.path), tmp_path / "other"
    other.touch(0o640)
    other.chmod(0o640)  # whatever the umask is
    if kind == "nothing":
        path.unlink()
    elif kind == "file":
        other = other.rename(path)
    else:
        path.unlink()
        if kind == "link":
            path.symlink_to(other)
        else:
            path.mkdir()
        path.chmod(0o640)
    limited(resource.RLIMIT_NOFILE, 0, ledger.mark_loss)
    if kind != "nothing":
        assert path.stat().st_mode & 0o777 == 0o640
    assert other.stat().st_mode & 0o777 == 0o640


def test_a_file_in_the_place_of_the_ledger_is_not_written_into(ledger: Ledger) -> None:
    Path(ledger.path).write_text("something else")
    ledger.mark_loss()
    assert Path(ledger.path).read_text() == "something else"


def test_a_last_line_that_stays_cut_is_lost(ledger: Ledger) -> None:
    with open(ledger.path, "ab") as file:
        file.write(b'\n{"k": "touch", "pid": 7, "sta')
    assert ledger.reader().damage() == ["1 line of the ledger is cut short, or no record"]
    with open(ledger.path, "ab") as file:
        file.write(b"\nnonsense\n")
    assert ledger.reader().damage() == ["2 lines of the ledger are cut short, or no record"]


def test_what_is_read_to_know_what_is_missing_is_not_lost(ledger: Ledger) -> None:
    reader = ledger.reader()
    ledger.append("touch")
    assert reader.damage() == []
    assert reader.damage() == []
    assert reader.behind()
    ledger.append("fork")
    assert [record["k"] for record in reader.new()] == ["touch", "fork"]
    assert not reader.behind()
    reader.close()


def test_a_ledger_that_is_gone_or_emptied_is_told(ledger: Ledger) -> None:
    os.truncate(ledger.path, 0)
    (words,) = ledger.reader().damage()
    assert "was emptied or replaced meanwhile" in words
    os.remove(ledger.path)
    (words,) = ledger.reader().damage()
    assert "cannot be read any more" in words


def test_the_ledger_of_an_earlier_session_begins_anew(ledger: Ledger) -> None:
    ledger.append("touch")
    ledger.mark_loss()  # it lacked a record, too
    ledger.create()
    assert (ledger.reader().new(), ledger.reader().damage()) == ([], [])


FOREIGN = {
    "a test file": "def test_a(): pass\n",
    "a newline": "\n",
    "JSON": '{"lost": 0}\n',
    "a record elsewhere": 'x\n{"lost": 0, "k": "ledger", "pid": 1}',
}


@pytest.mark.parametrize("text", FOREIGN.values(), ids=FOREIGN)
def test_a_file_that_is_no_ledger_is_left_alone(text: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(LedgerError, match="no ledger, and is left alone"):
        Ledger(str(path)).create()
    assert path.read_text() == text


def test_an_empty_file_may_become_the_ledger(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    Ledger(str(path)).create()
    assert Ledger(str(path)).reader().damage() == []


@pytest.mark.parametrize("kind", ["link", "dangling link", "folder", "FIFO", "device"])
def test_only_a_plain_file_is_taken(kind: str, ledger: Ledger, tmp_path: Path) -> None:
    path = tmp_path / "other"
    if kind.endswith("link"):
        path.symlink_to(ledger.path if kind == "link" else tmp_path / "nowhere")
    elif kind == "folder":
        path.mkdir()
    elif kind == "FIFO":
        os.mkfifo(path)
    else:
        path = Path("/dev/null")
    before = Path(ledger.path).read_bytes()
    with pytest.raises(LedgerError, match="no plain file"):
        Ledger(str(path)).create()
    assert Path(ledger.path).read_bytes() == before
    assert not (tmp_path / "nowhere").exists()


def test_the_ledger_of_a_session_that_runs_is_left_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "ledger")
    script = (
        "import sys; from pytest_cudafork.observe.base.ledger import Ledger\n"
        "Ledger(sys.argv[1]).create(); print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(LedgerError, match=rf"process {other.pid}, which made it, is still"):
            Ledger(path).create()
        other.kill()
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)  # ended, not reaped
        Ledger(path).create()
        other.communicate()


def test_a_file_that_another_user_has_laid_there_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.jsonl"
    path.touch()
    monkeypatch.setattr(unpatched.os, "geteuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(LedgerError, match=f"belongs to user {path.stat().st_uid}, who could"):
        Ledger(str(path)).create()
    assert path.read_bytes() == b""
    monkeypatch.setattr(unpatched.os, "geteuid", lambda: 0)
    Ledger(str(path)).create()


def test_records_of_another_host_are_taken_in_with_all_that_they_say(
    ledger: Ledger, tmp_path: Path
) -> None:
    other = Ledger(str(tmp_path / "other"))
    other.create()
    other.append("touch", number=1, owner="another host's")
    records = other.reader().new()
    ledger.take_in([])
    ledger.take_in(records)
    assert ledger.reader().new() == records


def test_a_reader_knows_whether_a_later_look_goes_on_where_it_was(ledger: Ledger) -> None:
    reader = ledger.reader()
    assert reader.goes_on(), "nothing was read so far"
    ledger.append("touch")
    reader.new()
    ledger.append("touch")
    assert reader.goes_on()
    os.truncate(ledger.path, 1)
    assert not reader.goes_on()
    os.remove(ledger.path)
    assert not reader.goes_on()


def test_a_ledger_begins_as_no_other_file_does(ledger: Ledger, tmp_path: Path) -> None:
    (tmp_path / "other").write_text("{}")
    assert ledgers.is_ledger(ledger.path)
    assert not ledgers.is_ledger(str(tmp_path / "other"))
    assert not ledgers.is_ledger(str(tmp_path))
