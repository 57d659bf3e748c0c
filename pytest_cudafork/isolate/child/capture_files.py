"""The files that a child captures output into: its own after a fork, and known to its parent.

The parent reads them when the child has crashed and cannot report its output any more.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from pytest_cudafork.compat import pytest_internals
from pytest_cudafork.compat.plugins import forked
from pytest_cudafork.compat.unpatched import os
from pytest_cudafork.isolate.captured_output import Kept
from pytest_cudafork.isolate.passed_phases import PassedPhases
from pytest_cudafork.process.channel import Channel
from pytest_cudafork.process.protocol import messages


class ForkedCapture:
    """The capture of a process that captures for nobody: each of its children does for itself.

    The files of the capture would be shared by all children, and its way back to the terminal leads
    to where this process writes. So a child puts files of its own and the parent's output under the
    same descriptors, which is much cheaper than to stop capturing and start again.
    """

    def __init__(self, config: pytest.Config, stdout: int, stderr: int) -> None:
        """Take the descriptors that are the standard output and error of the parent."""
        self._outputs = (stdout, stderr)
        parts = pytest_internals.captured_streams(config) or (None, None)
        self._files = capture_files(config)
        self._saved = [getattr(part, "targetfd_save", -1) for part in parts]
        self._faults = pytest_internals.descriptor_of_faults(config)

    def renew(self) -> None:
        """Let this child write to the parent's output, and capture into files of its own."""
        if self._faults >= 0:  # its stacks are for the terminal, and not for the parent's notes
            os.dup2(self._outputs[1], self._faults, inheritable=False)
        for number, output in enumerate(self._outputs):
            os.dup2(output, number + 1)
            saved = self._saved[number]
            if saved >= 0:
                os.dup2(output, saved, inheritable=False)
            os.close(output)
        renew_files(self._files)


def capture_files(config: pytest.Config) -> list[int]:
    """Return the descriptors of the files that pytest captures into; -1 where there is none."""
    return [_file_of(part) for part in pytest_internals.captured_streams(config) or (None, None)]


def call_before_output_is_read(config: pytest.Config, call: Callable[[], object]) -> None:
    """Call this, from now on, before what a phase of a test has written is read and emptied.

    A hook around the phase would do it, too, but stand in the traceback of what the test raises.
    """
    manager: Any = config.pluginmanager.get_plugin("capturemanager")
    if manager is None:
        return
    read = manager.read_global_capture

    def call_and_read() -> Any:
        call()
        return read()

    manager.read_global_capture = call_and_read


def renew_files(files: Sequence[int]) -> None:
    """Put files of this process's own under the descriptors that were another's, too.

    While pytest captures, 1 and 2 lead to the same files, so they are led to the new ones.
    """
    for number, file in enumerate(files):
        if file < 0:
            continue
        captures = os.fstat(number + 1)[:2] == os.fstat(file)[:2]
        own = os.memfd_create("pytest-cudafork-capture", os.MFD_CLOEXEC)
        os.dup2(own, file, inheritable=False)
        if captures:
            os.dup2(own, number + 1)
        os.close(own)


def _file_of(part: Any) -> int:
    """Return the descriptor that a part captures into; -1 if it captures into memory, or not."""
    try:
        return int(part.tmpfile.fileno())
    except (AttributeError, OSError, ValueError):
        return -1


def share_capture(config: pytest.Config, channel: Channel) -> tuple[Kept, PassedPhases]:
    """Give the parent the files that hold what this process has not reported, for after a crash.

    pytest empties them at the end of each phase, so they hold the output of the phase that crashed;
    what it has read, and phases that are told later, go into what is returned. With
    ``--capture=sys`` there are none, so the text is written to memory files as well.
    """
    kept, passed = Kept(), PassedPhases()
    files = [kept.fd, passed.fd, *_files_to_share(config)]
    channel.send(messages.CaptureFiles(len(files)), files)
    return kept, passed


def _files_to_share(config: pytest.Config) -> list[int]:
    streams = pytest_internals.captured_streams(config)
    if streams is None:
        return []
    if streams[0] is None and forked.claim_of(config).every_test:
        # pytest-forked keeps the output of a crash with --capture=no, too
        return [_mirror("stdout"), _mirror("stderr")]
    fds = [_readable_file_of(part) for part in streams]
    return fds if all(fd >= 0 for fd in fds) else []


def _mirror(name: str) -> int:
    """Let what is written to a stream of ``sys`` go to a memory file as well; return that."""
    fd = os.memfd_create("pytest-cudafork-output", os.MFD_CLOEXEC)
    setattr(sys, name, _Mirror(getattr(sys, name), fd))
    return fd


class _Mirror:
    """A text stream that also writes to a file; everything else is the stream's."""

    def __init__(self, stream: Any, fd: int) -> None:
        self._stream = stream
        self._fd = fd

    def write(self, text: str) -> Any:
        os.write(self._fd, text.encode("utf-8", "backslashreplace"))
        return self._stream.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __iter__(self) -> Any:
        return iter(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _readable_file_of(part: Any) -> int:
    """Return the descriptor of the file behind one captured stream, or -1."""
    in_memory = pytest_internals.memory_stream()
    file = getattr(part, "tmpfile", None)
    if type(file) is in_memory:
        part.tmpfile = file = _mirrored(in_memory)
        fd: int = file.mirror
        return fd
    try:
        return -1 if file is None else int(file.fileno())
    except (OSError, ValueError, AttributeError):
        return -1


def _mirrored(base: type) -> Any:
    """Return an in-memory text stream that also writes to a memory file, ``mirror``."""

    class Mirrored(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.mirror = os.memfd_create("pytest-cudafork-output", os.MFD_CLOEXEC)

        def write(self, text: str) -> int:
            os.write(self.mirror, text.encode("utf-8", "backslashreplace"))
            written: int = super().write(text)
            return written

        def truncate(self, size: int | None = None) -> int:
            os.ftruncate(self.mirror, 0)
            os.lseek(self.mirror, 0, os.SEEK_SET)
            kept: int = super().truncate(size)
            return kept

    return Mirrored()
