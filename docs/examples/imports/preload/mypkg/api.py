"""The module that most users import."""

from mypkg import config, log

__all__ = ["config", "log"]
