"""The scheduler needs no GPU, but its tests want a clean process."""

from engine.testing import fork_new_process_for_each_test


@fork_new_process_for_each_test
def test_short_requests_go_first():
    assert sorted(["long request", "short"], key=len)[0] == "short"
