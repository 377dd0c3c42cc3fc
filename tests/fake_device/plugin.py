"""A pytest plugin: all models of the process are loaded on the fake device (device.py)."""

import device
import pytest

from rlhf_lab.models import backbone

_load, loaded = backbone.load_backbone, []


def load_on_fake_device(name, **options):
    loaded.append(name)
    return _load(name, **options | {"device": device.NAME})


backbone.load_backbone = load_on_fake_device  # modules that imported it before would use the CPU: see the end


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    with device.DeviceMode():
        return (yield)


def pytest_sessionfinish(session):
    if not loaded:
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
