"""Every action has one method, and every client has them all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import pytest

from psyche_core.client.actions import Actions
from psyche_core.client.machine import actions as act
from psyche_core.client.machine import events as ev
from psyche_core.client.runtime.runtime import ClientRuntime
from psyche_core.simulator.members.node import Node

METHOD = {
    act.Join: "_join", act.Send: "_send", act.SetPeers: "_set_peers", act.Broadcast: "_broadcast", act.Expire: "_expire",
    act.FetchPayload: "_fetch_payload", act.KeepResults: "_keep_results", act.Prefetch: "_prefetch", act.SetTimer: "_set_timer",
    act.ShowPart: "_show_part", act.FetchPart: "_fetch_part", act.CheckParts: "_check_parts",
    act.StoreModel: "_store_model", act.Notify: "_notify", act.Stop: "_stop", **dict.fromkeys(get_args(act.Work), "_work"),
}  # fmt: skip


def recorder(called: list[tuple[str, object]]) -> Actions[str]:
    """Writes down which method was called with what, and answers with its name."""

    def method(name: str) -> Callable[[object, object], str]:
        def call(_: object, action: object) -> str:
            called.append((name, action))
            return name

        return call

    kind: Any = type("Recorder", (Actions,), {name: method(name) for name in set(METHOD.values())})
    return kind()  # type: ignore[no-any-return]


def blank(kind: type) -> Any:
    """An action of this class; what it carries does not matter here."""
    return object.__new__(kind)


def test_each_action_is_given_to_its_own_method() -> None:
    called: list[tuple[str, object]] = []
    client = recorder(called)
    assert set(METHOD) == set(get_args(act.Action)), "a new action needs a line here"
    for kind, name in METHOD.items():
        action = blank(kind)
        assert client.carry_out(action) == name
        assert called.pop() == (name, action)
    assert not called


@pytest.mark.parametrize("other", [ev.TimePassed(), None])
def test_what_is_no_action_is_refused(other: Any) -> None:
    with pytest.raises(AssertionError):
        recorder([]).carry_out(other)


def test_a_client_that_lacks_a_method_cannot_be_made() -> None:
    assert Actions.__abstractmethods__ == set(METHOD.values())
    lacking: Any = type("Lacking", (Node,), {"_set_timer": Actions._set_timer})
    with pytest.raises(TypeError, match="_set_timer"):
        lacking()


@pytest.mark.parametrize("client", [ClientRuntime, Node])
def test_runtime_and_simulator_use_this_dispatcher(client: type[Actions[Any]]) -> None:
    assert not client.__abstractmethods__
    assert client.carry_out is Actions.carry_out
