"""Stands for deepspeedai/DeepSpeed#7918 (and #7252): importing the package asks of every operator whether
this GPU can build it, so that nothing which imports it may fork."""

from deepspeed.git_version_info import report

__all__ = ["report"]
