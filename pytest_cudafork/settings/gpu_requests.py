"""The words for GPUs: the value of ``--cuda-fork-gpus`` and the arguments of the marker."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from pytest_cudafork.settings import AUTO
from pytest_cudafork.settings.sizes import read_size

if TYPE_CHECKING:
    from pytest_cudafork.settings.marker_map import Mark

WAIT_SECONDS = 1800.0
"""How long a test waits for GPUs that others hold, if its marker does not say."""
SIGNATURE = f"gpus(n, share=False, memory=None, wait={WAIT_SECONDS:.0f})"
"""The marker as documented."""

_LEAST_MEMORY = 1 << 20
_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z][0-9A-Za-z/-]*")
_INDEX = re.compile(r"0|[1-9][0-9]{0,5}")
_NUMBER_IN_MASK = re.compile(r"[0-9]{1,9}")


class GpuChoice(NamedTuple):
    """The value of ``--cuda-fork-gpus``.

    ``most`` limits the GPUs to the first so many; ``names`` are the only ones to use, numbers as
    nvidia-smi shows them or UUIDs; without either every GPU may be used.
    """

    most: int | None = None
    names: tuple[str, ...] = ()
    text: str = AUTO


class GpuWish(NamedTuple):
    """What the marker of a test asks for.

    ``share`` allows other tests that allow it on the same GPUs; ``wait`` is in seconds; ``memory``
    is what it needs of each GPU, in bytes, and others may have the rest.
    """

    n: int
    share: bool = False
    wait: float = WAIT_SECONDS
    memory: int | None = None


def parse_gpus(text: str) -> GpuChoice:
    """Read the value of ``--cuda-fork-gpus``.

    A number alone counts GPUs; a list has a comma (``2,`` is the list of GPU 2 alone) or UUIDs.

    Raises:
        ValueError: it is none of these; the message names the rule.

    """
    text = text.strip()
    if text == AUTO:
        return GpuChoice()
    if _INDEX.fullmatch(text):
        return GpuChoice(most=int(text), text=text)
    names = [name.strip() for name in text.split(",")]
    if len(names) > 1 and not names[-1]:
        names.pop()
    for name in names:
        if not is_gpu_name(name):
            raise ValueError(
                f"{text!r} does not say which GPUs to use: write auto, a number of GPUs as in 2, "
                "or a list as in 0,2 (GPU 2 alone is '2,') or GPU-5466639d,GPU-0c2fa1e7"
            )
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"{text!r} names {', '.join(repeated)} twice: name every GPU once")
    return GpuChoice(names=tuple(names), text=text)


def is_gpu_name(name: str) -> bool:
    """Whether a text can be the name of a GPU: its number, or a UUID or the beginning of one."""
    return bool(_INDEX.fullmatch(name) or _UUID.fullmatch(name))


def number_in_mask(name: str) -> int | None:
    """Return the number that stands in CUDA_VISIBLE_DEVICES or one of its kind; None for none."""
    return int(name) if _NUMBER_IN_MASK.fullmatch(name) else None


def read_gpus_mark(mark: Mark) -> GpuWish:
    """Read ``@pytest.mark.gpus``.

    Raises:
        ValueError: its arguments are wrong; the message has the signature.

    """
    allowed = {"n", "share", "memory", "wait"}
    unknown = sorted(set(mark.kwargs) - allowed)
    if unknown:
        raise ValueError(f"@pytest.mark.gpus does not take {unknown[0]!r}: write {SIGNATURE}")
    counts = [*mark.args, *([mark.kwargs["n"]] if "n" in mark.kwargs else [])]
    if len(counts) != 1:
        given = f"not {len(counts)} arguments" if counts else "and none is given"
        raise ValueError(f"@pytest.mark.gpus takes one number of GPUs, {given}: write {SIGNATURE}")
    wish = GpuWish(
        counts[0],
        mark.kwargs.get("share", False),
        mark.kwargs.get("wait", WAIT_SECONDS),
        _read_memory(mark.kwargs.get("memory")),
    )
    if type(wish.n) is not int or wish.n < 1:
        raise ValueError(f"@pytest.mark.gpus({wish.n!r}): n is a whole number of GPUs above 0")
    if not isinstance(wish.share, bool):
        raise ValueError(f"@pytest.mark.gpus(share={wish.share!r}): share is True or False")
    if type(wish.wait) not in (int, float) or not wish.wait > 0:
        raise ValueError(
            f"@pytest.mark.gpus(wait={wish.wait!r}): wait is a number of seconds above 0"
        )
    return wish


def _read_memory(value: object) -> int | None:
    """Read what a test needs of each GPU; None: it does not say."""
    if value is None:
        return None
    try:
        size = read_size(value) if isinstance(value, str) else 0
    except ValueError:
        size = 0
    if size < _LEAST_MEMORY:
        raise ValueError(
            f"@pytest.mark.gpus(memory={value!r}): memory is a size of at least 1 MiB, in words, "
            "as in '20GiB' or '512MiB'"
        )
    return size
