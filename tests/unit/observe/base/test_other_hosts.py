"""Records of several hosts in one ledger keep apart, and can be told apart."""

from __future__ import annotations

from pytest_cudafork.observe.base.other_hosts import (
    JOB,
    file_at_home,
    moved,
    moved_back,
    moved_number,
    process_words,
)

FORK = {"k": "fork", "id": "5-1-1", "pid": 5, "tid": 5, "ppid": 0, "parent": None, "owner": "4"}
TOLD = {"k": "reported", "id": "5-1-2", "pid": 5, "owner": "", "ids": ["5-1-1"], "fork": "5-1-1"}


def test_a_record_is_moved_and_moved_back() -> None:
    for record in (FORK, TOLD):
        there = moved(record, 3)
        assert there["pid"] == moved_number(5, 3)
        assert there["id"] == f"3:{record['id']}"
        assert moved_back(there, 3) == record
    assert moved(FORK, 3)["ppid"] == 0, "no process"
    assert moved(FORK, 3)["owner"] == str(moved_number(4, 3))
    assert moved(TOLD, 3)["ids"] == ["3:5-1-1"]
    assert moved(FORK, 3)["pid"] != moved(FORK, 2)["pid"]


def test_a_host_and_a_job_keep_apart() -> None:
    """A session over several hosts may be one of the jobs that are joined."""
    both = moved(moved(FORK, 3), 2, JOB)
    assert both["pid"] not in (moved(FORK, 3)["pid"], moved(FORK, 2, JOB)["pid"])
    assert moved_back(both, 2, JOB) == moved(FORK, 3)
    assert moved_back(moved_back(both, 2, JOB), 3) == FORK


def test_a_process_is_named_with_its_host() -> None:
    assert process_words(77) == "process 77"
    assert process_words(moved_number(77, 2)) == "process 77 of host 2"


def test_files_below_a_folder_are_those_of_the_same_names_here() -> None:
    assert file_at_home("/there/a/b.py", "/there", "/here") == "/here/a/b.py"
    for end in ("/", "//"):  # the folder itself, listed
        assert file_at_home(f"/there{end}", "/there", "/here") == f"/here{end}"
    for path in ("/there", "/therefore/a.py", "/usr/lib/x.py", "<string>"):
        assert file_at_home(path, "/there", "/here") == path
