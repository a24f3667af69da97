"""The second stage `clip` against its formula in plain numbers, and its limits."""

from __future__ import annotations

import pytest
import torch

from psyche_optim_distro.chunks.layout import build_layout
from psyche_optim_distro.chunks.tiles import Workspace, tiles_of
from psyche_optim_distro.direction.clip import Clip

CPU = torch.device("cpu")


@pytest.mark.parametrize("shape", [(8, 12), (64,), (6, 4), (3, 8, 4)])
def test_a_direction_is_the_update_over_twice_the_chunks_mean_magnitude(shape: tuple[int, ...]) -> None:
    layout = build_layout({"w": shape}, chunk=4, topk=2)
    (tile,) = tiles_of(layout, CPU)
    update = torch.randint(-200, 201, (layout.total,), generator=torch.Generator().manual_seed(3)).float()
    blocks = update.clone().view(tile.row_blocks, tile.height, -1, tile.width)
    clip = Clip(workspace=Workspace(CPU))
    clip.begin()
    direction = clip.direction(update, tile).view(blocks.shape)
    for row in range(blocks.shape[0]):
        for column in range(blocks.shape[2]):
            chunk = blocks[row, :, column].double()
            expected = (chunk / (2 * chunk.abs().mean())).clamp(-1, 1).float()
            torch.testing.assert_close(direction[row, :, column], expected, rtol=1e-6, atol=0)
    assert direction.abs().max() <= 1


def test_a_factor_of_a_chunk_changes_nothing() -> None:
    layout = build_layout({"w": (4, 8)}, chunk=4, topk=2)
    (tile,) = tiles_of(layout, CPU)
    update = torch.randint(-200, 201, (4, 8), generator=torch.Generator().manual_seed(4)).float()
    scaled = update.clone()
    scaled[:, 4:] *= 2.0**-20
    directions = [Clip(workspace=Workspace(CPU)).direction(each.view(-1), tile).clone() for each in (update, scaled)]
    assert torch.equal(*directions)


def test_a_chunk_of_zeros_does_not_move() -> None:
    layout = build_layout({"w": (4, 8)}, chunk=4, topk=2)
    (tile,) = tiles_of(layout, CPU)
    update = torch.zeros(4, 8)
    update[:, 4:] = 3.0
    direction = Clip(workspace=Workspace(CPU)).direction(update.view(-1), tile).view(4, 8)
    assert torch.equal(direction, torch.tensor([0.0] * 4 + [0.5] * 4).expand(4, 8))
