CUDA and fork (pytest-cudafork)
/tmp/RUN/v/bin/python /tmp/RUN/perf/p.py: exited with status 0 after 0.4 s
no touch of CUDA was seen; watched: 1 Python process
