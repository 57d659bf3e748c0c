"""Waiting for memory of GPUs, for unittest classes, conftests and scripts; needs no test session.

Nothing of CUDA is initialized by it.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["wait_idle", "wait_release"]

_LARGEST_PID = 2**31 - 1
"""What the type of the kernel holds."""


def wait_idle(
    gpus: Iterable[int | str] | None = None,
    *,
    spare: str = "1GiB",
    timeout: float = 60.0,
    own: bool = False,
) -> bool:
    """Wait until nobody but this process uses GPUs, or with ``own`` nobody at all.

    Args:
        gpus: numbers as CUDA counts them in this process, or UUIDs; None: all that it may use.
        spare: what may be in use on each all the same, as in ``"512MiB"``.
        timeout: seconds; 0 looks once.
        own: whether what this process holds counts, too, its context included.

    Returns:
        Whether it is known: False, with a ``CudaForkWarning``, where nobody tells (NVML refuses
        some MIG instances, or is not there). Where there is no GPU, none is in use.

    Raises:
        GpuBusyError: others use them all the time; names who, and the test that started it.
        TypeError: an argument is of the wrong type.
        ValueError: there is no such GPU, ``spare`` is no size, or the time is below 0.

    """
    from pytest_cudafork.gpus import waiting
    from pytest_cudafork.settings.arguments import check_wait
    from pytest_cudafork.settings.sizes import read_size

    check_wait(timeout)
    if not isinstance(spare, str):
        raise TypeError(f"spare={spare!r}: a size is a text, as in '512MiB'")
    size = read_size(spare)
    if gpus is not None and (isinstance(gpus, str | bytes) or not isinstance(gpus, Iterable)):
        raise TypeError(
            f"gpus={gpus!r}: give numbers or UUIDs of GPUs in a list, also of a single one: [0]"
        )
    chosen = waiting.visible_gpus() if gpus is None else waiting.chosen_gpus(gpus)
    allowed = {gpu.uuid: size for gpu in chosen}
    unknown = [] if chosen or gpus is not None else waiting.unknown_machine()
    return _is_known([*unknown, *waiting.until_idle(chosen, allowed, timeout, own=own)])


def wait_release(pids: int | Iterable[int], *, timeout: float = 60.0) -> bool:
    """Wait until processes have ended and their memory on all GPUs is back; zombies have ended.

    Args:
        pids: one process id, or several.
        timeout: seconds; 0 looks once.

    Returns:
        As ``wait_idle``.

    Raises:
        GpuBusyError: one of them lives or holds memory all the time; names it.
        TypeError: an argument is of the wrong type.
        ValueError: a process id is no number above 0, or the time is below 0.

    """
    from pytest_cudafork.gpus import waiting
    from pytest_cudafork.settings.arguments import check_wait

    check_wait(timeout)
    if isinstance(pids, str | bytes) or not isinstance(pids, int | Iterable):
        raise TypeError(f"pids={pids!r}: give the number of a process, or several")
    wanted = [pids] if isinstance(pids, int) else list(pids)
    for pid in wanted:
        if not isinstance(pid, int) or isinstance(pid, bool) or not 1 <= pid <= _LARGEST_PID:
            raise ValueError(f"{pid!r} is not the number of a process")
    visible = waiting.visible_gpus()
    unknown = [] if visible else waiting.unknown_machine()
    return _is_known([*unknown, *waiting.until_released(wanted, visible, timeout)])


def _is_known(unknown: list[str]) -> bool:
    if unknown:
        import warnings

        from pytest_cudafork.errors import CudaForkWarning
        from pytest_cudafork.gpus.waiting import words_of_unknown

        warnings.warn(CudaForkWarning(words_of_unknown(unknown)), stacklevel=3)
    return not unknown
