"""The schema of the documents, as it is shipped with the package."""

from __future__ import annotations

import json
import os
from typing import Any

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "schema.json")
"""The file; draft 2020-12 of JSON Schema."""


def read_schema() -> dict[str, Any]:
    """Return the schema."""
    with open(PATH, encoding="utf-8") as file:
        schema: dict[str, Any] = json.load(file)
    return schema
