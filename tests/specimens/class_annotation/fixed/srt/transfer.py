"""One transfer between host and device."""

from __future__ import annotations

import dataclasses

from srt.device_module import stream_type


@dataclasses.dataclass
class TransferBatch:
    pages: list[int]
    stream: stream_type() = None
