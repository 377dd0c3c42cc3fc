"""A plugin of pytest: once it is imported, every model of the process lies on a device that is not the CPU (device.py)."""

import device
import pytest

from rlhf_lab.models import backbone

_load, loaded = backbone.load_backbone, []


def load_there(name, **options):
    loaded.append(name)
    return _load(name, **options | {"device": device.NAME})


backbone.load_backbone = load_there  # whatever took it before would go on with the CPU: see the end


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    with device.Everywhere():
        return (yield)


def pytest_sessionfinish(session):
    if not loaded:
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
