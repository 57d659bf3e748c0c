"""All graph programs, by the class that they belong to."""

from __future__ import annotations

import dataclasses

from tests.specimens.graph_programs.bugs import device, host_values, lazy, memory, padding, plans
from tests.specimens.graph_programs.correct import (
    attention,
    layers,
    other_code,
    refused_calls,
    tensors,
    training,
)
from tests.specimens.graph_programs.program import Program

__all__ = ["CLASSES", "PROGRAMS"]

CLASSES: dict[str, tuple[Program, ...]] = {
    "lazily made": lazy.PROGRAMS,
    "values of the host": host_values.PROGRAMS,
    "padding": padding.PROGRAMS,
    "plans": plans.PROGRAMS,
    "memory": memory.PROGRAMS,
    "device": device.PROGRAMS,
    "layers": layers.PROGRAMS,
    "tensors": tensors.PROGRAMS,
    "attention": attention.PROGRAMS,
    "training": training.PROGRAMS,
    "calls": refused_calls.PROGRAMS,
    "other code": other_code.PROGRAMS,
}

PROGRAMS = tuple(
    dataclasses.replace(program, name=f"{kind}: {program.name}")
    for kind, programs in CLASSES.items()
    for program in programs
)
