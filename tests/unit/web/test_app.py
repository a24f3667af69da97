"""The page over HTTP: documents, increments, tokens, headers."""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest

from psyche_core.coordinator.commands import Command
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import BackendClosed, UserError
from psyche_core.interfaces.backend import Backend, StateUpdate
from psyche_core.telemetry import events as telemetry
from psyche_core.telemetry.sinks import to_json
from psyche_core.types import NodeIdentity
from psyche_core.web import feeds as feeds_module
from psyche_core.web.access import Access
from psyche_core.web.feeds import Feed, Feeds
from psyche_core.web.hosting import listen
from psyche_core.web.pages import ASSETS, PAGES
from psyche_core.web.sources import (
    check_folder,
    follow_coordinator,
    own_events,
    watch_folder,
    watch_run,
    watch_silence,
)
from tests.unit.coordinator.checked_run import checked_run
from tests.unit.web.conftest import Served, messages

TOKEN = "a-token-of-these-tests"


def step(number: int, loss: float = 3.0) -> telemetry.StepTrained:
    return telemetry.StepTrained(0, number, loss, 10, 1.0, 100)


def one_run(key: str = "first-light") -> tuple[Feeds, Feed]:
    feeds = Feeds()
    feed = feeds.add(key)
    feed.view.handle("client-1", 1.0, telemetry.Started("client", "ab" * 32, "first-light", "x"))
    feed.view.handle("client-1", 2.0, step(1))
    return feeds, feed


@pytest.mark.anyio
async def test_runs_a_run_and_a_member_are_documents(served: Served) -> None:
    feeds, _ = one_run()
    async with served(feeds) as client:
        runs = (await client.get("/api/runs")).json()
        assert [(run["key"], run["step"], run["loss"]) for run in runs["runs"]] == [("first-light", 0, 3.0)]
        run = (await client.get("/api/run", params={"run": "first-light"})).json()
        assert run["series"]["loss"]["rows"] == [[1, 3.0, 3.0, 3.0, 10, 2.0]]
        member = (await client.get("/api/member", params={"run": "first-light", "member": "client-1"})).json()
        assert member["member"]["id"] == "ab" * 32
        losses = (await client.get("/api/losses", params={"run": "first-light"})).json()
        assert losses["members"][0]["rows"] == [[1, 3.0]]


@pytest.mark.anyio
@pytest.mark.parametrize(
    "url", ["/api/run?run=none", "/api/run", "/api/member?run=first-light&member=none", "/api/events?run=none", "/x"]
)
async def test_what_is_not_there_is_404(served: Served, url: str) -> None:
    feeds, _ = one_run()
    async with served(feeds) as client:
        assert (await client.get(url)).status_code == 404


@pytest.mark.anyio
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
async def test_nothing_can_be_changed(served: Served, method: str) -> None:
    feeds, _ = one_run()
    async with served(feeds) as client:
        for url in ("/", "/api/run?run=first-light", "/api/events?run=first-light", "/api/login", "/assets/run.js"):
            assert (await client.request(method, url)).status_code == 405


@pytest.mark.anyio
async def test_changes_are_streamed_and_continued_after_the_last_one(served: Served) -> None:
    feeds, feed = one_run()
    url = "/api/events?run=first-light"
    async with served(feeds) as client:
        with anyio.fail_after(20):
            async with contextlib.aclosing(messages(client, url)) as stream:
                identity, first = await anext(stream)
                assert (first["since"], len(first["series"]["loss"]["rows"])) == (0, 1)
                feed.view.handle("client-1", 3.0, step(2))
                feed.changed()
                identity, second = await anext(stream)
                assert [row[0] for row in second["series"]["loss"]["rows"]] == [2]
                assert second["since"] == first["version"]
            feed.view.handle("client-1", 4.0, step(3))
            async with contextlib.aclosing(messages(client, url, **{"Last-Event-ID": identity})) as stream:
                _, resumed = await anext(stream)
                assert [row[0] for row in resumed["series"]["loss"]["rows"]] == [3]
            for foreign in ("other-5", "nonsense", f"{identity.partition('-')[0]}-{10**30}", ""):
                async with contextlib.aclosing(messages(client, url, **{"Last-Event-ID": foreign})) as stream:
                    _, whole = await anext(stream)
                    assert (whole["since"], len(whole["series"]["loss"]["rows"])) == (0, 3)


@pytest.mark.anyio
async def test_a_silent_run_sends_a_sign_of_life(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds_module, "HEARTBEAT_SECONDS", 0.05)
    feeds, _ = one_run()
    async with served(feeds) as client, client.stream("GET", "/api/events?run=first-light") as answer:
        with anyio.fail_after(20):
            async for line in answer.aiter_lines():
                if line == ": still here":
                    break


@pytest.mark.anyio
async def test_too_many_readers_are_told_to_come_again(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psyche_core.web.app.MAX_READERS", 1)
    feeds, _ = one_run()
    url = "/api/events?run=first-light"
    async with served(feeds) as client, contextlib.aclosing(messages(client, url)) as stream:
        await anext(stream)
        refused = await client.get(url)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "30")
    feeds, _ = one_run()
    async with served(feeds) as client, contextlib.aclosing(messages(client, url)) as stream:
        await anext(stream)


@pytest.mark.anyio
async def test_the_end_of_the_program_ends_streams_and_says_nothing(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    feeds, feed = one_run()
    with anyio.fail_after(20):
        async with served(feeds) as client, client.stream("GET", "/api/events?run=first-light") as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            feed.close()
            assert [line async for line in lines][-1] == ""
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.anyio
async def test_a_private_run_is_as_if_it_were_not_there(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    feeds, _ = one_run("secret")
    access = Access(by_run=[("secret", TOKEN)])
    feeds.add("open")
    urls = ("run?run=secret", "member?run=secret&member=client-1", "losses?run=secret", "events?run=secret")
    with caplog.at_level(logging.DEBUG):
        async with served(feeds, access) as client:
            for url in urls:
                answer = await client.get(f"/api/{url}")
                missing = await client.get(f"/api/{url.replace('secret', 'nothing')}")
                assert (answer.status_code, answer.text) == (missing.status_code, missing.text) == (404, missing.text)
            listed = (await client.get("/api/runs")).json()
            assert [run["key"] for run in listed["runs"]] == ["open"]
            assert listed["login"]
            bearer = {"Authorization": f"Bearer {TOKEN}"}
            assert (await client.get("/api/run?run=secret", headers=bearer)).status_code == 200

            refused = await client.get("/api/login", headers={"Authorization": "Bearer wrong-wrong-wrong"})
            assert (refused.status_code, "set-cookie" in refused.headers) == (401, False)
            accepted = await client.get("/api/login", headers=bearer)
            cookie = accepted.headers["set-cookie"]
            assert accepted.status_code == 204
            assert TOKEN not in cookie
            assert all(word in cookie.lower() for word in ("httponly", "samesite=strict", "path=/"))
            assert (await client.get("/api/run?run=secret")).status_code == 200, "the cookie"
            with anyio.fail_after(20):
                async with contextlib.aclosing(messages(client, "/api/events?run=secret")) as stream:
                    await anext(stream)
    assert not any(TOKEN in record.getMessage() for record in caplog.records if record.name.startswith(("psyche", "uvicorn")))


@pytest.mark.anyio
async def test_every_answer_forbids_what_a_page_does_not_need(served: Served) -> None:
    feeds, _ = one_run()
    async with served(feeds) as client:
        for url in ("/", "/run?run=x", "/assets/run.js", "/api/runs", "/missing"):
            headers = (await client.get(url)).headers
            assert headers["content-security-policy"].startswith("default-src 'self'")
            assert "unsafe" not in headers["content-security-policy"]
            assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")
            assert "server" not in headers
        assert (await client.get("/assets/../app.py")).status_code == 404
        assert (await client.get("/assets/%2e%2e/app.py")).status_code == 404


def test_pages_load_nothing_from_elsewhere_and_have_no_script_inside() -> None:
    for page in PAGES:
        text = page.html()
        assert "://" not in text, page.name
        assert text.count("<script ") == text.count("<script") == text.count('src="assets/'), page.name
        assert f'src="assets/{page.name}.js"' in text
        assert " style=" not in text, page.name
        assert "onclick" not in text, page.name
        assert "$" not in text, page.name
    for path in ASSETS.glob("*.js"):
        if ".min." not in path.name:
            text = path.read_text().replace("http://www.w3.org/2000/svg", "")  # a name, not an address
            assert "://" not in text, path.name
            assert not any(word in text for word in ("insertAdjacentHTML", "outerHTML", "document.write", "eval(")), path.name
            assert ".innerHTML =" not in text.replace(".innerHTML ===", ""), path.name


@pytest.mark.anyio
async def test_runs_of_a_folder_are_shown_and_followed(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psyche_core.web.sources.POLL_SECONDS", 0.02)
    monkeypatch.setattr("psyche_core.web.sources.SEARCH_SECONDS", 0.02)
    monkeypatch.setattr(feeds_module, "UPDATE_SECONDS", 0.01)
    (tmp_path / "one").mkdir()
    path = tmp_path / "one" / "client-1.jsonl"
    path.write_text(to_json(telemetry.Started("client", "ab" * 32, "first-light", "x")) + "\n")
    feeds = Feeds()
    with anyio.fail_after(20):
        async with served(feeds) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(watch_folder, tmp_path, feeds)
            while not (await client.get("/api/runs")).json()["runs"]:
                await anyio.sleep(0.01)
            async with contextlib.aclosing(messages(client, "/api/events?run=one")) as stream:
                async for _, document in stream:
                    if document["head"]["run_id"] == "first-light" and document["ready"]:
                        break
                with path.open("a") as out:
                    out.write(to_json(step(1)) + "\n" + to_json(step(2))[:30])
                async for _, document in stream:
                    if document["series"]["loss"]["rows"]:
                        break
                assert [row[0] for row in document["series"]["loss"]["rows"]] == [1]
            (tmp_path / "two").mkdir()
            (tmp_path / "two" / "client-1.jsonl").write_text(to_json(step(1)) + "\n")
            while len((await client.get("/api/runs")).json()["runs"]) < 2:
                await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()


@pytest.mark.anyio
async def test_a_run_of_a_folder_that_is_over_without_an_end_is_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So is one that is followed otherwise; whoever waits for changes is told."""
    monkeypatch.setattr("psyche_core.web.sources.POLL_SECONDS", 0.02)
    (tmp_path / "client-1.jsonl").write_text(to_json(step(1)) + "\n")
    later = time.time() + 1e6
    feeds = Feeds()
    now, tomorrow, other = feeds.add("now"), feeds.add("tomorrow"), feeds.add("other")
    own_events(other, source="client-1")(step(1))
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            for feed in (now, tomorrow):
                feed.ready = False
            tasks.start_soon(watch_run, tmp_path, now)
            tasks.start_soon(functools.partial(watch_run, tmp_path, tomorrow, clock=lambda: later))
            tasks.start_soon(functools.partial(watch_silence, other, clock=lambda: later))
            while not (now.ready and tomorrow.ready and other.view.silent):
                await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
    assert (now.view.silent, tomorrow.view.silent) == (False, True)


def test_a_sink_enters_what_this_process_tells() -> None:
    feeds = Feeds()
    feed = feeds.add("server")
    own_events(feed, source="client-1", clock=lambda: 7.0)(step(1))
    assert feed.view.loss.newest is not None
    assert feeds.add("server").key == "server (2)"


def test_a_port_that_is_taken_is_a_sentence() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"cannot serve the page at 127.0.0.1:{port}: .*--web-port"):
            listen("127.0.0.1", port)
    with pytest.raises(UserError, match=r"cannot serve the page at no.such.host.invalid"):
        listen("no.such.host.invalid", 0)


def test_a_folder_that_cannot_be_watched_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "there is no folder" in (check_folder(tmp_path / "missing") or "")
    assert "is a file" in (check_folder(tmp_path / "file") or "")
    assert check_folder(tmp_path) is None


class Followed(Backend):
    """A coordinator that shows these states, whatever is behind it, and then is gone."""

    identity = NodeIdentity(b"o" * 32, b"o" * 32)

    def __init__(self, states: Sequence[CoordinatorState]) -> None:
        self._states = iter(states)

    async def join(self, address: bytes, *, timeout: float) -> None:
        raise NotImplementedError

    async def send(self, command: Command, *, timeout: float) -> None:
        raise NotImplementedError

    async def next_state(self) -> StateUpdate:
        for state in self._states:
            return StateUpdate(state)
        raise BackendClosed("the coordinator is gone")

    async def aclose(self) -> None:
        return None


@pytest.mark.anyio
async def test_a_page_that_only_follows_a_coordinator_shows_checks_and_strikes(served: Served) -> None:
    states, checks = checked_run()
    feeds = Feeds()
    feed = feeds.add("first-light")
    with pytest.raises(BackendClosed):
        await follow_coordinator(Followed(states), feed)
    async with served(feeds) as client:
        members = (await client.get("/api/run", params={"run": "first-light"})).json()["members"]
    passed = sum(check.outcome == "passed" for check in checks)
    assert (sum(member["checks"] for member in members), sum(member["strikes"] for member in members)) == (passed, 2)
