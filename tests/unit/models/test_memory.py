"""What is free, what a computation takes, and what running out of memory looks like."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from psyche_core.models import memory
from psyche_core.models.memory import free_bytes, is_out_of_memory, peak_tensor_bytes

MB = 2**20


def test_the_peak_is_what_is_alive_at_once() -> None:
    given = torch.zeros(MB // 4)

    def compute() -> torch.Tensor:
        first = given + 1
        second = first + 1
        del first
        third = second + 1
        del second
        return third * given  # third and the product

    assert peak_tensor_bytes(compute) == 2 * MB


def test_views_and_changes_in_place_take_nothing() -> None:
    given = torch.zeros(MB // 4)
    assert peak_tensor_bytes(lambda: given.view(2, -1)[0].add_(1).t()) == 0


def test_what_the_backward_pass_needs_is_counted() -> None:
    weight = torch.ones(MB // 4, requires_grad=True)

    def compute(layers: int) -> None:
        value = weight
        for _ in range(layers):
            value = value.sin()
        value.sum().backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped

    assert peak_tensor_bytes(lambda: compute(8)) - peak_tensor_bytes(lambda: compute(4)) == 4 * MB


def test_the_same_computation_takes_the_same_each_time() -> None:
    def compute() -> None:
        torch.nn.functional.linear(torch.ones(64, 64, requires_grad=True), torch.ones(8, 64)).sum().backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped

    assert len({peak_tensor_bytes(compute) for _ in range(5)}) == 1


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 9 GB)"), True),
        (RuntimeError("shapes (2, 3) and (4, 5) do not match"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_running_out_of_memory_is_known(error: BaseException, expected: bool) -> None:
    assert is_out_of_memory(error) == expected


def test_a_tensor_that_no_machine_has_room_for_is_known_as_that() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.ones(2**50)
    assert is_out_of_memory(caught.value)


def test_free_memory_is_less_than_there_is() -> None:
    free = free_bytes()
    assert free is not None
    total = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    assert MB < free < int(total.split()[1]) * 1024


@pytest.mark.parametrize("version", [1, 2])
def test_a_container_has_no_more_than_its_limit(version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that it read stay in memory and count as used, but go when the memory is needed."""
    (tmp_path / "memory").mkdir()
    names = {
        1: ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
        2: ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    }
    limit, used, statistics, cached = names[version]
    (tmp_path / limit).write_text(f"{100 * MB}\n")
    (tmp_path / used).write_text(f"{70 * MB}\n")
    (tmp_path / statistics).write_text(f"anon 5\n{cached} {10 * MB}\nslab 3\n")
    monkeypatch.setattr(memory, "_GROUP_FOLDER", tmp_path)
    assert free_bytes() == 40 * MB


def test_a_group_without_a_limit_limits_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_GROUP_FOLDER", tmp_path)
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("5\n")
    assert (free_bytes() or 0) > MB
