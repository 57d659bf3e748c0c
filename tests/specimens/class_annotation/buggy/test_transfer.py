"""The scheduler passes batches to its worker."""

from srt.transfer import TransferBatch
from srt.worker import run_in_worker


def _total(batch: TransferBatch) -> int:
    return sum(batch.pages)


def test_pages_reach_the_worker():
    assert run_in_worker(_total, TransferBatch(pages=[1, 2])) == 3
