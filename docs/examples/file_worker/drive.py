"""Run test files through the file worker, and exit with 1 if one of them failed."""

import json
import os
import subprocess
import sys

read, write = os.pipe()
command = [sys.executable, "-m", "pytest_cudafork", "fileworker", "--result-fd", str(write)]
worker = subprocess.Popen(
    [*command, "--preload", "json"], stdin=subprocess.PIPE, text=True, pass_fds=(write,)
)
os.close(write)
failed = []
with worker, os.fdopen(read) as answers:
    for filename in sys.argv[1:]:
        print(json.dumps({"filename": filename}), file=worker.stdin, flush=True)
        answer = json.loads(answers.readline() or '{"returncode": 1}')
        if answer["returncode"] != 0:
            failed.append(filename)
    worker.stdin.close()
print(f"{len(failed)} of {len(sys.argv) - 1} files failed: {' '.join(failed)}")
sys.exit(bool(failed or worker.returncode))
