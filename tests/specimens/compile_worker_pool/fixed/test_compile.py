"""A kernel is compiled in a worker."""

from inductor.manager import compile_in_worker


def test_a_kernel_is_compiled_for_the_device():
    driver, sms, source = compile_in_worker("add").split(":")
    assert driver in ("cuda", "cpu")
    assert int(sms) > 0
    assert source == "add"
