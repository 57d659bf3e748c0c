"""One test of the kernels."""


def test_warps() -> None:
    """The module is imported by the test, as it would be by an engine's worker."""
    from kernels import NUM_WARPS  # type: ignore[import-not-found]

    assert NUM_WARPS in (4, 8)
