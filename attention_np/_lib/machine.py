"""What this machine grants the process: cores and memory, as far as the system says."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path("/")


class Cores(NamedTuple):
    """How many cores there are."""

    present: int
    allowed: int  # that the process may run on
    quota: float | None  # how many it may keep busy, by its control group; None: no limit is known

    @property
    def usable(self) -> int:
        """How many threads can run at once."""
        return self.allowed if self.quota is None else max(1, min(self.allowed, round(self.quota)))


class Memory(NamedTuple):
    """Bytes of memory."""

    total: int
    available: int


def cores(root: Path = ROOT) -> Cores:
    """The cores of this machine, and how many of them the process may use."""
    present = os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else present
    return Cores(present, allowed, min(_quotas(root), default=None))


def memory(root: Path = ROOT) -> Memory | None:
    """The memory of this machine, or of the control group of the process if that has less; None if nobody says."""
    whole = _of_system(root)
    if whole is None:
        return None
    total, available = whole
    for limit, used in _limits(root):
        total, available = min(total, limit), min(available, max(0, limit - used))
    return Memory(total, available)


def _of_system(root: Path) -> Memory | None:
    lines = (line.split() for line in _read(root / "proc/meminfo").splitlines())
    sizes = {words[0]: 1024 * int(words[1]) for words in lines if len(words) == 3}  # such as "MemTotal: 1024 kB"
    if "MemTotal:" in sizes:
        return Memory(sizes["MemTotal:"], sizes.get("MemAvailable:", sizes["MemTotal:"]))
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # AttributeError: on Windows
        return None
    return Memory(total, total) if total > 0 else None


def _quotas(root: Path) -> Iterator[float]:
    """The quotas of processor time, in cores, of the control groups that the process is in."""
    for folder in _groups(root, "cpu"):
        words = _read(folder / "cpu.max").split()  # version 2, such as "150000 100000" or "max 100000"
        if not words:
            words = [_read(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]  # version 1
        if len(words) == 2 and all(word.isdecimal() for word in words) and int(words[1]):
            yield int(words[0]) / int(words[1])


def _limits(root: Path) -> Iterator[tuple[int, int]]:
    """The limits of memory of the control groups that the process is in, and what is used of them."""
    for folder in _groups(root, "memory"):
        for limit_name, used_name, cache_name in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, used = _read(folder / limit_name).strip(), _read(folder / used_name).strip()
            if not (limit.isdecimal() and used.isdecimal()):
                continue
            statistics = dict(line.split() for line in _read(folder / "memory.stat").splitlines())
            yield int(limit), int(used) - int(statistics.get(cache_name, 0))  # the cache of files gives way


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The folders of the control groups of the process, from its own to the outermost, in both versions."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, name = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mounted = root / "sys/fs/cgroup" / controllers if controllers else root / "sys/fs/cgroup"
        if not mounted.is_dir():
            mounted = root / "sys/fs/cgroup" / controller
        folder = mounted / name.lstrip("/")
        yield folder
        if folder != mounted:  # within a container, names may start outside of what is mounted there
            yield from (parent for parent in folder.parents if parent == mounted or mounted in parent.parents)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
