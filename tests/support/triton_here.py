"""Whether Triton interprets kernels in this process of tests, or compiles them.

It decides when it is imported. Imported as an interpreter it compiles no kernel afterwards, so on a
machine with a GPU no test module may import it like that.
"""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "TRITON_INTERPRET"
INTERPRETS = os.environ.get(VARIABLE) == "1" or not Path("/dev/nvidiactl").exists()
