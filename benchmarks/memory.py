"""Resident memory of a process, as Linux tells it."""

from __future__ import annotations

from pathlib import Path


def resident(pid: int | str = "self") -> int:
    """Bytes of a process's memory that lie in RAM now."""
    return _field("VmRSS", pid)


def peak(pid: int | str = "self") -> int:
    """Bytes at the highest point since `forget_peak`."""
    return _field("VmHWM", pid)


def forget_peak() -> None:
    """Begin a new measurement of this process's `peak`."""
    Path("/proc/self/clear_refs").write_text("5")


def _field(name: str, pid: int | str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    message = f"no {name} in /proc/{pid}/status; memory is measured on Linux"
    raise SystemExit(message)
