"""Most of these tests need a C compiler: without one they are skipped; with RLHF_LAB_REQUIRE_COMPILER=1 they fail."""

import os

import pytest


@pytest.fixture
def kernels():
    """Skips or fails the test if there are no kernels."""
    from rlhf_lab.kernels import compile

    if compile.load_kernels() is None:
        (pytest.fail if os.environ.get("RLHF_LAB_REQUIRE_COMPILER") == "1" else pytest.skip)("no C compiler here")
