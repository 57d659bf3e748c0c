"""The weights files of a folder, one or several, looked through before a tensor of them is read.

Hugging Face writes a large model as shards, with an index that says which tensor is in which file.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from sample_engine.errors import WeightsError
from sample_engine.model.settings_file import why_no_file

__all__ = ["Found", "WeightFiles", "opened", "shown"]

_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_MOST_INDEX_BYTES = 1 << 26


def shown(text: str, most: int = 100) -> str:
    """A tensor's name for a message, or what names one: a file may call it anything."""
    text = text if text.isprintable() else repr(text)
    return text if len(text) <= most else f"{text[:most]}..."


class Found(NamedTuple):
    """What a header says of a tensor, and the file that it is in."""

    path: Path
    shape: tuple[int, ...]
    dtype: str


class WeightFiles:
    """The tensors of one or several files, by name. :func:`opened` makes it."""

    def __init__(self, path: Path, files: Mapping[Path, Any]) -> None:
        self.path = path  # the file or the index, for messages
        self._files = files
        self.found: dict[str, Found] = {}
        for each, file in files.items():
            for name in file.keys():  # noqa: SIM118  # not a dict
                if name in self.found:
                    raise WeightsError(
                        f"{shown(name)} is in {str(self.found[name].path)!r} and in "
                        f"{str(each)!r}: which of them counts cannot be told."
                    )
                part = file.get_slice(name)
                self.found[name] = Found(each, tuple(part.get_shape()), str(part.get_dtype()))

    def tensor(self, name: str, cut: tuple[slice, ...] = ()) -> Tensor:
        """Read a tensor, or a part of it."""
        file = self._files[self.found[name].path]
        return file.get_slice(name)[cut] if cut else file.get_tensor(name)

    def wrong_dtypes(self, names: Iterator[str] | list[str]) -> list[str]:
        """Which of these are of a type that is not read, a line each."""
        return [
            f"{name} is of {self.found[name].dtype}: quantized weights are not read, and others "
            "only as bfloat16, float16 or float32. Save it as one of these."
            for name in names
            if self.found[name].dtype not in _DTYPES
        ]


@contextlib.contextmanager
def opened(path: Path) -> Iterator[WeightFiles]:
    """Open ``path``, or the shards of its index where there is no such file.

    Only headers are read: what they claim must fit the size of the file. Raises
    :class:`WeightsError` for files that are missing, cut short or of another kind.
    """
    from safetensors import SafetensorError, safe_open

    index = path.with_name(path.name + ".index.json")
    sharded = not _has(path) and _has(index)
    placed = _index_of(index) if sharded else {}
    paths = sorted({index.with_name(file) for file in placed.values()}) if sharded else [path]
    _must_exist(paths, index if sharded else None)
    with contextlib.ExitStack() as stack:
        files = {}
        for each in paths:
            try:
                files[each] = stack.enter_context(safe_open(each, framework="pt"))
            except (SafetensorError, OSError) as error:
                raise WeightsError(_corrupt(each, error)) from error
        try:
            whole = WeightFiles(index if sharded else path, files)
            _must_hold(whole, placed)
            yield whole
        except (SafetensorError, OSError) as error:
            raise WeightsError(_corrupt(whole.path, error)) from error


def _must_hold(files: WeightFiles, placed: Mapping[str, str]) -> None:
    """Refuse shards that are not those of their index."""
    for name, file in placed.items():
        found = files.found.get(name)
        if found is None or found.path.name != file:
            where = "is not there" if found is None else f"is in {found.path.name!r} instead"
            raise WeightsError(
                f"{str(files.path)!r} says that {shown(name)} is in {file!r}, and it {where}: the "
                "files are of different models, or of different versions of one. Fetch them anew."
            )


def _index_of(path: Path) -> dict[str, str]:
    """Which tensor is in which file of the same folder."""
    try:
        if path.stat().st_size > _MOST_INDEX_BYTES:
            raise WeightsError(f"{str(path)!r} has more than {_MOST_INDEX_BYTES} bytes: no index.")
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise WeightsError(f"{str(path)!r} cannot be read as JSON: {error}.") from error
    placed = values.get("weight_map") if isinstance(values, dict) else None
    if not isinstance(placed, dict) or not placed:
        raise WeightsError(
            f"{str(path)!r} has no 'weight_map' that says which tensor is in which file: fetch or "
            "save it anew."
        )
    for name, file in placed.items():
        if not isinstance(file, str) or not file or Path(file).name != file:
            raise WeightsError(
                f"{str(path)!r} has {shown(name)} in {file!r}: it must be a file of the same "
                "folder."
            )
    return placed


def _must_exist(paths: list[Path], index: Path | None) -> None:
    missing = [path for path in paths if not _is_there(path)]
    if not missing:
        return
    if index is None:
        raise WeightsError(
            f"There is no weights file {str(missing[0])!r}. Save the weights there, or ask for "
            "random ones with load_format='dummy'."
        )
    names = ", ".join(repr(path.name) for path in missing[:4])
    more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
    raise WeightsError(
        f"{str(index)!r} names {len(paths)} files, of which {len(missing)} are not there: "
        f"{names}{more}. Fetch them, too."
    )


def _has(path: Path) -> bool:
    why = why_no_file(path)
    if why:
        raise WeightsError(f"{str(path)!r} {why}")
    return _is_there(path)


def _is_there(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # no file has such a name
        return False


def _corrupt(path: Path, error: Exception) -> str:
    return (
        f"{str(path)!r} cannot be read as safetensors: {shown(str(error), 1000)}. It may be cut "
        "short or another kind of file: fetch or save it anew."
    )
