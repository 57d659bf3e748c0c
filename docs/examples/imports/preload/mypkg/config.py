"""A setting that is read when the module is imported, and never again."""

import os

BACKEND = os.getenv("MYPKG_BACKEND", "flash")
