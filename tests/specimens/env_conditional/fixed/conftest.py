"""The profiling cluster sets this for every job."""

import os

os.environ["KINETO_USE_DAEMON"] = "1"
