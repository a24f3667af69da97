"""The web page in a real browser: live points, hostile names, keyboard, screen reader, phone, private runs, a real run."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from browser import OpenPage, axe_violations, chromium, open_page, url_said
from psyche_core.telemetry import events as telemetry
from psyche_core.telemetry.event_files import EventFolderReader
from psyche_core.telemetry.sinks import to_json
from psyche_core.ui.plot import smoothed
from tests.conftest import LocalTestnet
from tests.e2e.conftest import SHORT, Started

__all__ = ["chromium", "open_page"]  # fixtures

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

MARKUP = "<img src=x onerror=globalThis.pwned=1>"


class Events:
    """Event files that grow."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)

    def tell(self, source: str, *events: telemetry.Event, time: float | None = None) -> None:
        lines = [json.loads(to_json(event)) for event in events]
        with (self.folder / f"{source}.jsonl").open("a") as stream:
            for line in lines:
                stream.write(json.dumps(line | ({} if time is None else {"time": time})) + "\n")

    def train(self, first: int, last: int, *, members: int = 3) -> None:
        chance = random.Random(first)
        for step in range(first, last + 1):
            for member in range(1, members + 1):
                loss = 3 + 6 * math.exp(-step / 40) + chance.gauss(0, 0.05)
                self.tell(f"client-{member}", telemetry.StepTrained(0, step, loss, 4096, 1.0, 800_000), time=1e9 + 10 * step)
                self.tell(f"client-{member}", telemetry.StepApplied(0, step, 3, 3, 0.2), time=1e9 + 10 * step + 5)


@pytest.fixture
def run(tmp_path: Path) -> Events:
    """A run of three members that has trained 60 steps."""
    events = Events(tmp_path / "runs" / "first-light")
    events.tell("server", telemetry.Started("server", "ff" * 32, "first-light", "127.0.0.1:1", 200), time=1e9)
    for member in (1, 2, 3):
        events.tell(
            f"client-{member}",
            telemetry.Started("client", f"a{member}" * 32, "first-light", "x"),
            telemetry.Joined("first-light"),
            time=1e9,
        )
    events.train(1, 60)
    events.tell("client-3", telemetry.Dropped(0, 60, "silent", returns=True), time=1e9 + 610)
    events.tell("client-1", telemetry.Validated(50, 4.2), telemetry.CheckpointSaved(50, "checkpoints/step-50"), time=1e9 + 505)
    return events


@pytest.fixture
def site(start: Started, run: Events) -> str:
    """The address of a page that shows the run's folder."""
    return url_said(start("web", "--events", run.folder.parent, "--web-port", 0))


def at(site: str, page: str, **query: str) -> str:
    return f"{site}{page}?{urlencode(query)}"


def figure(page: Any, name: str) -> str:
    return str(page.locator("#figures div", has=page.locator("dt", has_text=re.compile(f"^{name}$"))).locator("dd").inner_text())


def wait_for_step(page: Any, step: int) -> None:
    page.locator(f"[role=progressbar][aria-valuenow='{step}']").wait_for(timeout=60_000)


def test_a_visitor_finds_a_run_and_a_member_and_sees_points_arrive(site: str, run: Events, open_page: OpenPage) -> None:
    page = open_page(site)
    page.locator("#runs .chip", has_text="no news since").wait_for()
    page.get_by_role("link", name="first-light").click()
    page.wait_for_selector("#loss canvas")
    assert page.locator("#phase").inner_text().startswith("no news since 9 Sep 2001")
    assert page.get_by_role("heading", level=1).inner_text() == "first-light"
    assert figure(page, "Step").startswith("60")
    before = page.evaluate("psyche.charts.loss.data[0].length")
    run.train(61, 75)
    wait_for_step(page, 75)
    assert page.evaluate("psyche.charts.loss.data[0].length") > before
    assert figure(page, "Step").startswith("75")
    row = page.get_by_role("row").filter(has_text="client-3")
    assert "dropped" in row.inner_text(), "it only finished what it had begun"
    assert "dropped 1 times" in row.get_by_role("img").get_attribute("aria-label")

    page.get_by_role("link", name="client-2").click()
    page.wait_for_selector("#loss canvas")
    assert page.get_by_role("heading", level=1).inner_text() == "client-2"
    run.train(76, 80)
    page.locator("#figures", has_text="step 80").wait_for()
    page.get_by_role("link", name="first-light").click()
    page.wait_for_selector("#loss canvas")


def test_a_member_of_an_overlay_has_peers_and_reaches_the_rest_over_them(site: str, run: Events, open_page: OpenPage) -> None:
    paths = telemetry.PeerPaths((telemetry.PathOfPeer("aaaaaaaa", "direct", 12.0),), over_others=19)
    run.tell("client-2", telemetry.NetworkTotals(1, 1, 20), paths, time=1e9 + 601)
    page = open_page(at(site, "member", run="first-light", member="client-2"))
    page.locator("#figures", has_text="19 more over others").wait_for()
    assert figure(page, "Peers").splitlines() == ["20", "connected, 19 more over others"]


def test_the_axis_is_steps_tokens_or_time(site: str, open_page: OpenPage) -> None:
    page = open_page(at(site, "run", run="first-light"))
    page.wait_for_selector("#loss canvas")
    last = "psyche.charts.loss.data[0].at(-1)"
    assert page.evaluate(last) == 60
    page.get_by_role("radio", name="Tokens").check()
    assert page.evaluate(last) == 60 * 3 * 4096
    page.get_by_role("radio", name="Time").check()
    assert page.evaluate(last) == 1e9 + 600
    page.get_by_label("Each member").check()
    page.locator("#loss .u-series").nth(8).wait_for(state="attached")
    assert page.evaluate("psyche.charts.loss.data.length") == 6 + 3


def test_the_smoothed_curve_is_the_one_of_the_png(site: str, open_page: OpenPage) -> None:
    """Two programs, one arithmetic; its ends are tested in tests/unit/ui/test_plot.py."""
    page = open_page(site)
    chance = random.Random(1)
    for length, width in ((200, 31), (40, 9), (12, 31), (3, 3)):
        values = [5 - step / 50 + chance.gauss(0, 0.3) for step in range(length)]
        smooth = "async ([values, width]) => (await import('./assets/axis.js')).smooth(values, width)"
        drawn = page.evaluate(smooth, [values, width])
        assert drawn == pytest.approx([value for _, value in smoothed(list(enumerate(values)), width=width)])


def test_figures_have_three_digits_and_the_right_unit(site: str, open_page: OpenPage) -> None:
    page = open_page(site)
    text = "async ([name, values]) => { const common = await import('./assets/common.js'); return values.map(common[name]); }"
    counts = [0, 9_999, 10_000, 75_264, 999_499, 999_999, 3_500_000, 2.5e9, 1e12]
    assert page.evaluate(text, ["count", counts]) == [
        *("0", "9,999", "10.0 k", "75.3 k", "999 k", "1.00 M", "3.50 M", "2.50 G", "1.00 T")
    ]
    assert page.evaluate(text, ["bytes", [0, 999, 1000, 999_999, 7.5e9]]) == ["0 B", "999 B", "1.00 kB", "1.00 MB", "7.50 GB"]
    page.get_by_role("link", name="first-light").click()
    page.wait_for_selector("#loss canvas")
    assert figure(page, "Tokens").splitlines()[0] == "737 k", "60 steps of 3 members, 4,096 tokens each"


def test_a_page_of_a_few_steps_has_no_mark_twice_and_no_invented_figure(
    start: Started, tmp_path: Path, open_page: OpenPage
) -> None:
    events = Events(tmp_path / "runs" / "new")
    events.tell(
        "server", telemetry.Started("server", "ff" * 32, "new", "127.0.0.1:1", 200), telemetry.PhaseChanged("Warmup", 0, 1, 3)
    )
    events.train(1, 4)
    page = open_page(at(url_said(start("web", "--events", events.folder.parent, "--web-port", 0)), "run", run="new"))
    page.wait_for_selector("#loss canvas")
    assert page.evaluate("psyche.charts.loss.plot.axes[0]._values") == ["1", "2", "3", "4"]
    assert set(page.evaluate("psyche.charts.traffic.plot.axes.flatMap((axis) => axis._values)")) == {""}, "nothing was told of it"
    page.get_by_role("row").filter(has_text="client-1").locator("td", has_text="–").nth(1).wait_for()
    assert "0 B" not in page.locator("#members").inner_text()


def test_the_smoothed_curve_of_a_short_run_keeps_its_shape(site: str, open_page: OpenPage) -> None:
    page = open_page(site)
    losses = [3 + 4 * 0.5**step for step in range(20)]
    smooth = "async (values) => { const axis = await import('./assets/axis.js'); "
    smooth += "return [0, 31].map((wanted) => axis.smooth(values, axis.widthFor(values.length, wanted))); }"
    unchanged, drawn = page.evaluate(smooth, losses)
    assert unchanged == losses
    assert max(abs(one - other) for one, other in zip(drawn, losses, strict=True)) < 0.5


def test_a_chart_can_be_used_by_keyboard_and_read_as_a_table(site: str, open_page: OpenPage) -> None:
    page = open_page(at(site, "run", run="first-light"))
    page.wait_for_selector("#loss canvas")
    chart = page.get_by_role("group", name="Chart: loss")
    chart.focus()
    page.keyboard.press("End")
    said = page.locator("#loss .say")
    assert re.match(r"step 60: loss [34]\.\d+, .*smoothed", said.inner_text())
    page.keyboard.press("ArrowLeft")
    assert said.inner_text().startswith("step 59:")
    page.keyboard.press("+")
    low, high = page.evaluate("psyche.charts.loss.view()")
    assert high - low == pytest.approx(59 / 2)
    page.keyboard.press("PageUp")
    assert page.evaluate("psyche.charts.loss.view()[0]") < low
    page.keyboard.press("Escape")
    assert page.evaluate("psyche.charts.loss.view()") == [1, 60]
    page.locator("#loss summary").click()
    table = page.get_by_role("table", name=re.compile("Last values: loss"))
    assert table.get_by_role("row").nth(1).inner_text().startswith("step 60")


def test_names_of_strangers_are_text_and_nothing_else(start: Started, tmp_path: Path, open_page: OpenPage) -> None:
    key = f"{MARKUP}&run=other#x"
    events = Events(tmp_path / "runs" / key)
    name = "<svg onload=globalThis.pwned=2>"
    events.tell("server", telemetry.Started("server", MARKUP, MARKUP, MARKUP), telemetry.PhaseChanged(MARKUP, 0, 1, 1))
    events.tell(
        "server",
        telemetry.MemberExited(0, MARKUP, MARKUP),
        telemetry.CheckpointStored(1, f"javascript:{MARKUP}"),
        telemetry.RewardPaid(MARKUP, 5),
    )
    events.tell(
        name,
        telemetry.Started("client", MARKUP, MARKUP, MARKUP),
        telemetry.Problem(MARKUP, MARKUP),
        telemetry.EpochDigest(0, 1, MARKUP),
    )
    events.tell(name, telemetry.StepTrained(0, 1, 3.0, 10, 1.0, 5), telemetry.Ended(MARKUP, success=False))
    site = url_said(start("web", "--events", events.folder.parent, "--web-port", 0))
    page = open_page(site)
    page.get_by_role("link", name="img src").first.click()
    page.locator("#news li").first.wait_for()
    for place in ("#name", "#members", "#entries", "#news", "#phase"):
        assert "<img src=x" in page.locator(place).inner_text() or "<svg" in page.locator(place).inner_text(), place
    page.get_by_role("link", name="svg onload").click()
    page.locator("#spans tr").first.wait_for()
    for _ in (page, page.go_back()):
        assert page.locator("main img, main svg").count() == 0
        assert page.evaluate("globalThis.pwned") is None
    assert page.complaints == []


def test_axe_finds_nothing_wrong(site: str, open_page: OpenPage) -> None:
    ready = {"": "#runs article", "run": "#news li", "member": "#news li", "login": "#form"}
    for scheme in ("light", "dark"):
        for name, place in ready.items():
            page = open_page(at(site, name, run="first-light", member="client-1"), color_scheme=scheme, reduced_motion="reduce")
            page.locator(place).first.wait_for()
            assert axe_violations(page) == [], (name, scheme)


def test_it_fits_a_phone_and_keeps_a_chosen_theme(site: str, open_page: OpenPage) -> None:
    page = open_page(at(site, "run", run="first-light"), viewport={"width": 360, "height": 740}, color_scheme="light")
    page.wait_for_selector("#loss canvas")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    cut_off = (
        "[...document.querySelectorAll('.figures small')].filter(e => e.scrollWidth > e.clientWidth).map(e => e.textContent)"
    )
    assert page.evaluate(cut_off) == []
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.get_by_role("button", name="Theme: system").click()
    page.get_by_role("button", name="Theme: light").click()
    dark = page.evaluate(background)
    assert dark != light
    page.reload()
    page.wait_for_selector("#loss canvas")
    assert page.evaluate(background) == dark


def test_a_private_run_needs_its_token(start: Started, run: Events, tmp_path: Path, open_page: OpenPage) -> None:
    token = "a-token-for-this-test"
    (tmp_path / "tokens").write_text(token)
    process = start("web", "--events", run.folder.parent, "--web-port", 0, "--token-file", tmp_path / "tokens")
    site = url_said(process)
    page = open_page(site)
    page.get_by_text("The runs here are private").wait_for()
    page.get_by_role("link", name="I have a token").click()
    page.get_by_label("Token").fill("not-the-right-token")
    page.keyboard.press("Enter")
    page.get_by_text("This token opens no run here").wait_for()
    page.get_by_label("Token").fill(token)
    page.keyboard.press("Enter")
    page.get_by_role("link", name="first-light").click()
    page.wait_for_selector("#loss canvas")

    page = open_page(f"{site}login#token={token}")
    page.get_by_role("link", name="first-light").wait_for()
    page = open_page(at(site, "run", run="first-light"))
    page.get_by_text("There is no such run here yet, or it is private").wait_for()
    process.terminate()
    printed, complained = process.communicate(timeout=30)
    assert token not in printed + complained
    assert process.returncode == 143


def test_a_server_that_was_away_is_found_again(
    start: Started, run: Events, free_port: Callable[[], int], open_page: OpenPage
) -> None:
    port = free_port()
    process = start("web", "--events", run.folder.parent, "--web-port", port)
    page = open_page(at(url_said(process), "run", run="first-light"))
    page.wait_for_selector("#loss canvas")
    process.terminate()
    process.wait(timeout=30)
    page.locator("#live.off").wait_for()
    run.train(61, 65)
    url_said(start("web", "--events", run.folder.parent, "--web-port", port))
    wait_for_step(page, 65)
    page.locator("#live", has_text=re.compile("^live$")).wait_for()


def test_a_finished_run_is_played_again(start: Started, run: Events, open_page: OpenPage) -> None:
    process = start("replay", run.folder, "--speed", 20, "--from-step", 20, "--logs", "none", "--web-port", 0)
    page = open_page(at(url_said(process), "run", run="replay"))
    page.wait_for_selector("#loss canvas")
    shown = page.evaluate("psyche.live.head.step")
    assert 19 <= shown < 60
    wait_for_step(page, 60)


@pytest.mark.soak  # a whole run beside the browser
@pytest.mark.quic
@pytest.mark.timeout(300)
def test_a_real_run_is_watched_while_it_trains(
    start: Started, local_testnet: LocalTestnet, free_port: Callable[[], int], tmp_path: Path, open_page: OpenPage
) -> None:
    config = local_testnet(**SHORT | {"total_steps": 24, "rounds_per_epoch": 8, "init_min_clients": 2})
    out = tmp_path / "out"
    process = start(
        *("testnet", "start", "--num-clients", 2, "--config-path", config, "--server-port", free_port()),
        *("--out", out, "--web-port", 0, "--logs", "none"),
    )
    page = open_page(at(url_said(process), "run", run="out"))
    page.wait_for_selector("#loss canvas", timeout=150_000)
    seen: list[int] = []
    while (steps := page.evaluate("psyche.live.rows('loss').length")) < 24:
        if not seen or steps > seen[-1]:
            seen.append(steps)
        assert process.poll() is None, process.communicate()
        page.wait_for_timeout(100)
    assert len(seen) >= 2, "points came one after the other"
    assert page.locator("#members tbody tr").count() == 2
    page.locator("#epochs", has_text="2 equal").wait_for(timeout=60_000)
    process.communicate(timeout=120)
    assert process.returncode == 0
    told_by_server = [each.event for each in EventFolderReader(out / "events" / "server.jsonl").read()]
    reported = [event for event in told_by_server if isinstance(event, telemetry.WitnessReported)]
    assert {event.step for event in reported} >= set(range(2, 20)), "what the page of a server without event files draws"
    assert all(0 < event.loss < 12 for event in reported)


def test_a_server_shows_its_own_run_and_a_page_elsewhere_follows_it(
    start: Started, local_testnet: LocalTestnet, free_port: Callable[[], int], open_page: OpenPage
) -> None:
    config = local_testnet(init_min_clients=2)
    port = free_port()
    server = start(
        *("server", "run", "--state", config / "state.toml", "--data-config", config / "data.toml"),
        *("--server-port", port, "--web-port", 0, "--logs", "none"),
    )
    page = open_page(at(url_said(server), "run", run="server"))
    page.locator("#progress", has_text="0 of 2 members that are needed to start").wait_for(timeout=60_000)
    assert page.get_by_role("heading", level=1).inner_text() == "local-testnet"

    follower = start("web", "--run-id", "local-testnet", "--server-addr", f"127.0.0.1:{port}", "--web-port", 0)
    other = open_page(at(url_said(follower), "run", run="local-testnet"))
    other.locator("#progress", has_text="0 of 2 members that are needed to start").wait_for(timeout=60_000)
    assert other.locator("#phase").inner_text() == "waiting for members"
    assert page.locator("#members tbody tr").count() == 0, "who only watches is no member"
