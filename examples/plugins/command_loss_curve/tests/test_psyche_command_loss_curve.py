"""What is particular to psyche loss-curve."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from psyche_command_loss_curve.chart import draw
from psyche_command_loss_curve.command import command
from psyche_command_loss_curve.events import read

from psyche_core.errors import UserError


def trained(step: int, loss: float | None, *, tokens: int = 100) -> str:
    event = {"event": "step_trained", "time": 1.0, "epoch": 1, "step": step, "loss": loss, "tokens": tokens}
    return json.dumps({**event, "seconds": 0.1, "payload_bytes": 7}) + "\n"


def validated(step: int, loss: float) -> str:
    return json.dumps({"event": "validated", "time": 1.0, "step": step, "loss": loss}) + "\n"


def went_back(step: int) -> str:
    return json.dumps({"event": "went_back", "time": 1.0, "from_step": 9, "to_step": step, "from_checkpoint": False}) + "\n"


def test_the_mean_of_members_is_by_tokens(tmp_path: Path) -> None:
    (tmp_path / "client-1.jsonl").write_text(trained(1, 4.0, tokens=300) + trained(2, 3.0) + validated(2, 3.5))
    (tmp_path / "client-2.jsonl").write_text(trained(1, 8.0, tokens=100))
    (tmp_path / "server.jsonl").write_text('{"event": "phase_changed", "time": 1.0}\n')
    curve = read(tmp_path)
    assert curve.trained == [(1, 5.0), (2, 3.0)]
    assert curve.validated == [(2, 3.5)]
    assert curve.members == 2


def test_parts_of_a_file_are_one_member_and_steps_are_trained_again(tmp_path: Path) -> None:
    (tmp_path / "client-1.20260101.jsonl").write_text(trained(1, 5.0) + trained(2, 4.0) + trained(3, 9.0))
    (tmp_path / "client-1.20260102.jsonl").write_text(went_back(1) + trained(2, 3.0))
    curve = read(tmp_path)
    assert curve.trained == [(1, 5.0), (2, 3.0)]
    assert curve.members == 1


@pytest.mark.parametrize(
    "line",
    [
        trained(2, 3.0)[:-9],
        "[" * 100_000 + "\n",
        '"text"\n',
        '{"event": []}\n',
        "\x1b[2J\n",
        trained(2, 3.0).replace("100", "0"),
        trained(2, 3.0).replace("100", '"1"'),
        trained(2, 3.0).replace(": 2", f": {10**400}"),
        trained(2, 3.0).replace(' "step": 2,', ""),
    ],
    ids=["half", "deep", "text", "list", "control", "no tokens", "tokens", "huge", "no step"],
)
def test_a_line_that_is_no_event_is_left_out(tmp_path: Path, line: str) -> None:
    file = tmp_path / "client-1.jsonl"
    file.write_text(trained(1, 5.0) + line)
    assert read(file).trained == [(1, 5.0)]


@pytest.mark.parametrize("loss", ["null", "NaN", "-Infinity", "1e308", "1" + 400 * "0", '"3"'])
def test_a_loss_that_is_not_a_number_is_counted(tmp_path: Path, loss: str) -> None:
    line = trained(2, None).replace("null", loss)
    (tmp_path / "client-1.jsonl").write_text(trained(1, 5.0) + line + trained(3, 4.0))
    curve = read(tmp_path)
    assert (curve.trained, curve.not_finite) == ([(1, 5.0), (3, 4.0)], 1)


def test_a_curve_is_drawn_from_corner_to_corner() -> None:
    curve = [(1, 6.0), (2, 5.0), (3, 4.0), (4, 4.0), (5, 2.0)]
    assert draw(curve, [(5, 4.0), (6, 100.0)], width=14, height=5) == [
        "  6.000 |*",
        "        | *",
        "  4.000 |  **o",
        "        |",
        "  2.000 |    *",
        "        +-----",
        "         1   5",
    ]


def test_many_steps_share_a_column_and_one_is_enough() -> None:
    lines = draw([(step, float(step)) for step in range(1000)], [], width=29, height=4)
    assert max(map(len, lines)) == 29
    assert sum(line.count("*") for line in lines) == 20
    assert draw([(7, 3.0)], [], width=12, height=3)[-3:] == ["  3.000 |*", "        +---", "         7"]


def test_the_command_draws_and_tells(tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    events = (
        trained(1, 5.0) + trained(2, 3.0) + trained(3, 4.0) + trained(4, None).replace('"loss": null, ', "") + validated(3, 4.5)
    )
    (tmp_path / "events" / "client-1.jsonl").write_text(events)
    output = CliRunner().invoke(command, [str(tmp_path), "--width", "40", "--height", "3"]).output.splitlines()
    assert len(output) == 3 + 2 + 1 + 3
    assert output[-3:] == [
        "1 member: 5.000 nats a token in step 1, 4.000 in step 3; lowest 3.000 in step 2",
        "held-out text: 4.500 after step 3",
        "left out: 1 with a loss that is not a number",
    ]


def test_what_has_no_curve_is_a_sentence(tmp_path: Path) -> None:
    def said(place: Path) -> str:
        result = CliRunner().invoke(command, [str(place)])
        assert isinstance(result.exception, UserError)
        return result.exception.sentence

    assert said(tmp_path / "none").endswith("none has no event files (*.jsonl)")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "client-1.jsonl").write_text('{"event": "joined"}\n')
    assert said(tmp_path).endswith("it has folders of runs, give one of them: mine")
    assert "has no loss of a trained step yet" in said(tmp_path / "mine")
