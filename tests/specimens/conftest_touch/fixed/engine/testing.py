"""Runs a test function in a forked process."""

import functools
import os


def fork_new_process_for_each_test(function):
    @functools.wraps(function)
    def wrapper(*arguments, **keywords):
        pid = os.fork()
        if pid == 0:
            try:
                function(*arguments, **keywords)
            except BaseException:
                os._exit(1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "the test failed in its process"

    return wrapper
