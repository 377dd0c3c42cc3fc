"""A C compiler is needed for most of these: without one they skip, and fail where RLHF_LAB_REQUIRE_COMPILER=1."""

import os

import pytest


@pytest.fixture
def kernels():
    """Sees to it that there are kernels."""
    from rlhf_lab.kernels import compile

    if compile.load_kernels() is None:
        (pytest.fail if os.environ.get("RLHF_LAB_REQUIRE_COMPILER") == "1" else pytest.skip)("no C compiler here")
