"""One transfer between host and device."""

import dataclasses

from srt.device_module import stream_type


@dataclasses.dataclass
class TransferBatch:
    pages: list[int]
    stream: stream_type() = None  # touch: culprit
