"""Free memory in a container: the limits of control groups, in both versions of their file system."""

from types import SimpleNamespace

import pytest

from rlhf_lab.jobs import container_memory
from rlhf_lab.jobs.container_memory import available_bytes
from rlhf_lab.jobs.memory_estimate import detect_device

HOST, GB = 64 * 10**9, 10**9
V1_UNLIMITED = 9223372036854771712


@pytest.fixture(autouse=True)
def host(monkeypatch):
    monkeypatch.setattr(container_memory.psutil, "virtual_memory", lambda: SimpleNamespace(available=HOST))


def group(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / f"memory.{name}").write_text(f"{content}\n")


def free(tmp_path, groups):
    (tmp_path / "self").write_text(groups)
    return available_bytes(tmp_path, tmp_path / "self")


def test_without_a_limit_the_host_counts(tmp_path):
    assert free(tmp_path, "0::/\n") == HOST
    assert available_bytes(tmp_path / "none", tmp_path / "none") == HOST
    group(tmp_path, max="max", current=5 * GB)
    group(tmp_path / "memory", limit_in_bytes=V1_UNLIMITED, usage_in_bytes=5 * GB)
    assert free(tmp_path, "4:memory:/\n0::/\n") == HOST


def test_version_2(tmp_path):
    group(tmp_path, max=16 * GB, current=3 * GB, stat=f"anon {GB}\ninactive_file {2 * GB}\nactive_file {GB}")
    assert free(tmp_path, "0::/\n") == 15 * GB  # 16 - 3, and 2 that are cached files


def test_the_smallest_limit_of_the_groups_around_the_process(tmp_path):
    group(tmp_path / "pod", max=8 * GB, current=GB)
    group(tmp_path / "pod" / "app", max=12 * GB, current=GB)
    assert free(tmp_path, "0::/pod/app\n") == 7 * GB


@pytest.mark.parametrize("path", ["/", "/docker/ab12"])  # a container may not see the group that the host names
def test_version_1(tmp_path, path):
    stat = f"inactive_file 7\ntotal_inactive_file {GB}"
    group(tmp_path / "memory", limit_in_bytes=4 * GB, usage_in_bytes=2 * GB, stat=stat)
    group(tmp_path, limit_in_bytes=1, usage_in_bytes=1)  # not the folder of the memory controller
    assert free(tmp_path, f"5:cpu,cpuacct:{path}\n4:hugetlb,memory:{path}\n") == 3 * GB


def test_the_host_has_less_than_the_limit(tmp_path):
    group(tmp_path, max=2 * HOST, current=0)
    assert free(tmp_path, "0::/\n") == HOST


def test_a_full_container_has_nothing_left(tmp_path):
    group(tmp_path, max=GB, current=2 * GB)
    assert free(tmp_path, "0::/\n") == 0


def test_the_device_has_what_the_container_leaves(tmp_path, monkeypatch):
    group(tmp_path, max=16 * GB, current=GB)
    (tmp_path / "self").write_text("0::/\n")
    monkeypatch.setattr(container_memory, "CGROUP_ROOT", tmp_path)
    monkeypatch.setattr(container_memory, "PROCESS_GROUPS", tmp_path / "self")
    monkeypatch.setattr("rlhf_lab.jobs.memory_estimate._detect_gpu", lambda: None)
    assert detect_device().free_bytes == 15 * GB
