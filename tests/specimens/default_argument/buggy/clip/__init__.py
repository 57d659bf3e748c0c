"""Stands for openai/CLIP#196: a default argument asks for a GPU when the module is imported, and the web
server that imports it forks its workers afterwards."""

from clip.clip import load

__all__ = ["load"]
