"""Files in memory: one file under several descriptors, in any process, and nothing on a disk."""

from __future__ import annotations

import os
import stat

from sample_engine.process.memory_file import MemoryFile


def test_it_is_one_empty_file_that_its_path_names_and_no_folder_has() -> None:
    file = MemoryFile()
    try:
        with open(file.path(), "ab") as again:
            again.write(b"hello")
        assert os.pread(file.fileno(), 10, 0) == b"hello"
        status = os.fstat(file.fileno())
        assert stat.S_ISREG(status.st_mode)
        assert status.st_nlink == 0
    finally:
        file.close()
    assert file.fileno() == -1
    file.close()


def test_it_goes_to_a_process_that_is_started_and_to_no_other() -> None:
    file = MemoryFile()
    try:
        assert not os.get_inheritable(file.fileno())
    finally:
        file.close()
