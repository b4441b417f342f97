"""What the process is granted, by the files of the system; and how bytes are written."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from helpers import each

from attention_np._lib import machine
from attention_np._lib.machine import Cores


def write(root: Path, files: Mapping[str, str]) -> Path:
    for name, content in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")
    return root


MEMINFO = {
    "proc/meminfo": "MemTotal:       8388608 kB\nMemFree:  1 kB\nMemAvailable:   4194304 kB\nHugePages_Total: 0\n"
}
GIB = 2**30


def test_memory_is_that_of_the_system_without_control_groups(tmp_path: Path) -> None:
    assert machine.memory(write(tmp_path, MEMINFO)) == (8 * GIB, 4 * GIB)


def test_memory_is_that_of_the_control_group_if_that_is_less(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/outer/inner\n",
        "sys/fs/cgroup/outer/memory.max": f"{2 * GIB}\n",
        "sys/fs/cgroup/outer/memory.current": f"{GIB}\n",
        "sys/fs/cgroup/outer/memory.stat": f"anon 1\ninactive_file {GIB // 2}\n",
        "sys/fs/cgroup/outer/inner/memory.max": "max\n",
        "sys/fs/cgroup/outer/inner/memory.current": "12\n",
    }
    assert machine.memory(write(tmp_path, MEMINFO | files)) == (2 * GIB, 3 * GIB // 2)


def test_memory_is_limited_by_control_groups_of_the_first_version_too(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "9:name=systemd:/\n8:pids:/another\n4:memory:/job\n0::/\n",
        "sys/fs/cgroup/memory/another/memory.limit_in_bytes": f"{GIB}\n",
        "sys/fs/cgroup/memory/another/memory.usage_in_bytes": "0\n",
        "sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{3 * GIB}\n",
        "sys/fs/cgroup/memory/job/memory.usage_in_bytes": f"{GIB}\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "77\n",
    }
    assert machine.memory(write(tmp_path, MEMINFO | files)) == (3 * GIB, 2 * GIB)


def test_a_container_finds_its_limits_where_its_own_group_is_mounted(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/not/seen/from/within\n",
        "sys/fs/cgroup/memory.max": f"{GIB}\n",
        "sys/fs/cgroup/memory.current": "0\n",
        "sys/fs/cgroup/cpu.max": "150000 100000\n",
    }
    root = write(tmp_path, MEMINFO | files)
    assert machine.memory(root) == (GIB, GIB)
    assert machine.cores(root).quota == 1.5


def test_memory_is_unknown_where_nobody_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sysconf", raising=False)
    assert machine.memory(tmp_path) is None


@pytest.mark.skipif(not hasattr(os, "sysconf"), reason="the system has no sysconf")
def test_memory_is_known_without_a_file_that_says_so(tmp_path: Path) -> None:
    found = machine.memory(tmp_path)
    assert found is not None
    assert found.total == found.available > 2**26


def test_the_quota_is_the_smallest_on_the_way_out(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "3:cpu,cpuacct:/a/b\n",
        "sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_quota_us": "400000\n",
        "sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "200000\n",
        "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
    }
    assert machine.cores(write(tmp_path, files)).quota == 2


@each(("quota", "usable"), [(None, 4), (8.0, 4), (2.0, 2), (1.5, 2), (0.3, 1)])
def test_usable_cores_are_those_of_the_quota(quota: float | None, usable: int) -> None:
    assert Cores(8, 4, quota).usable == usable
