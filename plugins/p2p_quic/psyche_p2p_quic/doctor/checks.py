"""Measures the network for `psyche doctor network`. Contacts only the given server, the given relays and the run's relays."""

from __future__ import annotations

import http.client
import logging
import time
from collections.abc import Sequence

import anyio
import anyio.to_thread

from psyche_core.errors import PsycheError, TransportError, UserError, WireError
from psyche_core.sdk.observe import observed_run
from psyche_core.wire.signing import SecretKey
from psyche_p2p_quic.addresses.relay_urls import canonical_relays
from psyche_p2p_quic.doctor.relay_rates import relay_rates
from psyche_p2p_quic.doctor.server_check import CONNECT_SECONDS, check_server
from psyche_p2p_quic.doctor.verdict import Figures, RelayFigures
from psyche_p2p_quic.endpoint.endpoint import Endpoint
from psyche_p2p_quic.endpoint.links import LinkLost, ObserverRefused
from psyche_p2p_quic.endpoint.own_address import RelayAnswer, locate_observer
from psyche_p2p_quic.relay.login import MembersOnly, RelayLogin, TokenRefused, why_unreachable

logger: logging.Logger = logging.getLogger("psyche.p2p.doctor")

OBSERVER_SECONDS = 6.0
LOGIN_SECONDS = 15.0


async def measure(
    server: str,
    relays: Sequence[str],
    *,
    interface: str,
    port: int = 0,
    run_id: str | None = None,
    key: SecretKey | None = None,
    token: str | None = None,
    rates: bool = True,
) -> Figures:
    """Measure everything that can be measured.

    server: `host:port#KEY` or `host:port#insecure`. run_id: to test the run's relays too, which the server names. interface: to
    bind; see `addresses.interfaces`. key: our own, for relays that serve members only; None makes one. rates: whether to measure
    a relay's speed, which takes some seconds. Raises UserError for a wrong server address, and TransportError.
    """
    checked = await check_server(server)
    problem = checked.problem
    found = list(relays)
    if run_id is not None and checked.reached and not checked.wrong:
        try:
            found += await _relays_of_run(run_id, server, key)
        except UserError:
            raise  # a wrong address, run or key was given, so other results would not help
        except (PsycheError, TimeoutError) as error:
            problem = (error.sentence if isinstance(error, PsycheError) else str(error)) or "the coordinator did not answer"
    key = key or SecretKey.generate()
    endpoint = await Endpoint.bind(key.seed, interface=interface, port=port, whole=True)
    try:
        local = endpoint.sockets
        figures = [await _relay(url, endpoint, key, token=token, rates=rates) for url in canonical_relays(found)]
    finally:
        await endpoint.aclose(timeout=1.0)
    return Figures(
        server,
        checked.reached,
        checked.ms,
        problem,
        local,
        tuple(figures),
        run_id,
        server_wrong=checked.wrong,
        server_unnamed=checked.unnamed,
    )


async def _relays_of_run(run_id: str, server: str, key: SecretKey | None) -> tuple[str, ...]:
    with anyio.fail_after(2 * CONNECT_SECONDS):
        async with observed_run(run_id, server, key=key, retry_seconds=CONNECT_SECONDS) as backend:
            return (await backend.next_state()).all_relays


async def _relay(url: str, endpoint: Endpoint, key: SecretKey, *, token: str | None, rates: bool) -> RelayFigures:
    began, now = time.perf_counter(), time.time()
    try:
        answer: RelayAnswer | None = await anyio.to_thread.run_sync(locate_observer, url, abandon_on_cancel=True)
        problem = ""
    except WireError as error:  # it can be reached, but has no observer
        answer, problem = None, str(error)
    except (OSError, http.client.HTTPException) as error:
        return RelayFigures(url, reachable=False, problem=why_unreachable(error))

    ms = _ms(began)
    udp, seen, upload, download = None, None, None, None
    login, refusal = await _log_in(url, key, token)
    try:
        if answer is not None:  # while we are logged in, because an observer may answer only clients of its relay
            udp, seen, problem = await _ask_observer(endpoint, answer)
        if login is not None and rates:
            try:
                upload, download = await relay_rates(login)
            except (OSError, TransportError, WireError, TimeoutError) as error:
                problem = "; ".join(filter(None, (problem, f"rates were not measured: {str(error) or 'it took too long'}")))
    finally:
        if login is not None:
            login.close()
    if isinstance(refusal, TokenRefused):
        problem = f"it needs a token, and {'another one' if token else 'none'} was given"
    elif isinstance(refusal, MembersOnly):
        problem = "it serves members of the run only, and this key is none now; before you join, that is as it should be"
        if udp is False:
            problem += "; its observer did not answer over UDP"
    elif refusal is not None:
        problem = "; ".join(filter(None, (problem, f"it could not be used: {str(refusal) or 'it took too long'}")))
    # the relay's clock has whole seconds, so it is half a second late on average; it answered half way through the request
    offset = None if answer is None or answer.date is None else round(now + ms / 2000 - (answer.date + 0.5), 1)
    return RelayFigures(
        url,
        reachable=True,
        ms=ms,
        udp=udp,
        seen=seen,
        clock_offset=offset,
        upload=upload,
        download=download,
        problem=problem,
        refused=isinstance(refusal, TokenRefused),
        members_only=isinstance(refusal, MembersOnly),
    )


async def _log_in(url: str, key: SecretKey, token: str | None) -> tuple[RelayLogin | None, Exception | None]:
    """Return a connection that the relay has admitted, or why there is none."""
    try:
        with anyio.fail_after(LOGIN_SECONDS):
            return await RelayLogin.open(url, key, token=token), None
    except (OSError, TransportError, WireError, TimeoutError) as error:
        return None, error


async def _ask_observer(endpoint: Endpoint, answer: RelayAnswer) -> tuple[bool, str | None, str]:
    """Return whether UDP packets arrived, the address seen, and a problem."""
    try:
        with anyio.fail_after(OBSERVER_SECONDS):
            link, observation = await endpoint.call_observer(answer.location, answer.hosts)
    except ObserverRefused as error:
        return True, None, str(error)
    except (LinkLost, TimeoutError):
        return False, None, "the observer did not answer over UDP"
    except (TransportError, WireError) as error:
        return True, None, f"what answers over UDP is no observer: {error}"

    link.close(0, "")
    return True, str(observation), ""


def _ms(began: float) -> float:
    return round(1000 * (time.perf_counter() - began), 1)
