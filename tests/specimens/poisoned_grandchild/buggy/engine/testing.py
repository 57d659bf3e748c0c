"""Runs a test function in a forked process."""

import functools
import os
import traceback


def fork_new_process_for_each_test(function):
    @functools.wraps(function)
    def wrapper():
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                function()
                status = 0
            except Exception:
                traceback.print_exc()
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "the test failed in its process"

    return wrapper
