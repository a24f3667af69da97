"""Carries out the faults of a script: what happens to members and the server, and how it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psyche_core.coordinator.commands import Pause, Resume
from psyche_core.simulator.members.owner import OWNER_DELAY
from psyche_core.simulator.script import ALL_LIES, NETWORK_FAULTS, Fault
from psyche_core.types import RunState

if TYPE_CHECKING:
    from psyche_core.simulator.members.node import Node
    from psyche_core.simulator.world import World


class Faults:
    """The faults of one run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._clock, self._server, self._network = world.clock, world.server, world.network
        self._nodes, self._lies, self._counts = world.nodes, world.lies, world.counts

    def begin(self, fault: Fault) -> None:
        """A fault begins."""
        self._world.note("fault", f"{fault.kind} of {fault.nodes or 'all'} for {fault.duration:.1f} s, {fault.amount:.2f}")
        if fault.kind in NETWORK_FAULTS:
            self._network.begin(fault)
        elif fault.kind in ("server-restart", "older-state"):
            if self._server.up:
                self._server.crash()
        elif fault.kind == "all-die":
            self._all_die(fault)
            return
        elif fault.kind == "owner-pause":
            if self._server.up and self._server.apply(Pause()) is None:
                self._counts["owner-pause"] += 1
        else:
            for index in fault.nodes:
                self._inject(fault, self._nodes[index])
        if fault.kind in ALL_LIES and not fault.duration:
            return

        self._clock.after(fault.duration, self._end, fault)

    def _all_die(self, fault: Fault) -> None:
        """All members crash at the same moment; each returns within the fault's duration, with or without its disk."""
        self._counts["all-die"] += 1
        if all(node.liar or node.index in fault.nodes for node in self._nodes):
            self._world.all_lost_in = self._server.state.progress.epoch
        self._world.coordinator.sample_tracker.all_died(self._server.state)
        for node in self._nodes:
            if node.running:
                node.crash()
                rng = self._world.stream(f"death of {node.index} at {fault.start}")
                wait = fault.duration * (0.3 + 0.7 * rng.random())
                self._clock.after(wait, self._restart, node, node.index not in fault.nodes)

    def _restart(self, node: Node, disk: bool) -> None:
        if not node.running and node.stop is None and not self._server.finished:
            node.boot(disk=disk)

    def _inject(self, fault: Fault, node: Node) -> None:
        match fault.kind:
            case "crash" | "restart":
                if node.running:
                    self._counts[fault.kind] += 1
                    node.crash()
            case "pause":
                self._counts["pause"] += 1
                node.pause()
            case "slow":
                node.slowed.append(fault.amount)
            case "slow-downlink":
                node.downlinks.append(fault.amount)
            case "skew":
                self._counts["skew"] += 1
                node.clock_offset += fault.amount * 1000.0
                node.clock_rate = fault.amount
            case "full-disk":
                node.full_disks += 1
            case "empty-results":
                node.empty_results.append(fault.amount)
            case "failing-work":
                node.failing_work.append(fault.amount)
            case "slow-rpc":
                node.rpc_lags.append(fault.amount)
            case "failing-rpc":
                node.rpc_fails.append(fault.amount)
            case "leave":
                if node.running:
                    self._counts["leave"] += 1
                    node.ask_to_leave()
            case "bit-flip":
                if self._may_flip(node):
                    self._counts["bit-flip"] += 1
                    node.corrupt(bit=self._counts["bit-flip"])
            case "late":
                pass
            case _:
                self._lies.begin(node, fault.kind)

    def _may_flip(self, node: Node) -> bool:
        """Whether a bit of this member's masters may flip: it holds the model, and the right reports stay a majority.

        Reports of liars, of corrupted members and of this one are wrong. They must be fewer than half of the reports of all
        running members, and fewer than half of those of the epoch's healthy members (if any of these is wrong). Otherwise
        nobody could tell which model is right.
        """
        reporting = [other for other in self._nodes if other.running and (other.liar or other.holds_model)]
        state = self._server.state
        members = {state.epoch.clients[slot].id.signer for slot in state.healthy_slots}
        parts = (reporting, [other for other in reporting if other.identity.signer in members])
        wrong = [sum(other.corrupted or other.liar or other is node for other in part) for part in parts]
        return node.holds_model and all(2 * count < len(part) for count, part in zip(wrong, parts, strict=True) if count)

    def _end(self, fault: Fault) -> None:
        self._world.note("fault", f"{fault.kind} of {fault.nodes or 'all'} is over")
        if fault.kind in NETWORK_FAULTS:
            self._network.end(fault)
            if fault.kind in ("partition", "asymmetric"):
                for node in self._nodes:
                    if node.running:
                        self._server.reconnect(node)
        elif fault.kind in ("server-restart", "older-state"):
            if not self._server.up:
                self._server.restart(older=fault.amount if fault.kind == "older-state" else 0.0)
                self._clock.after(OWNER_DELAY, self._resume_again)
        elif fault.kind == "owner-pause":
            self._resume()
        else:
            for index in fault.nodes:
                self._release(fault, self._nodes[index])

    def _resume_again(self) -> None:
        """The coordinator may have forgotten that the owner resumed the run."""
        state, now = self._server.state, self._clock.now
        pausing = any(fault.kind == "owner-pause" and fault.start <= now < fault.end for fault in self._world.script.faults)
        if not pausing and (state.run_state is RunState.Paused or state.pending_pause):
            self._resume()

    def _resume(self) -> None:
        if self._server.finished:
            return
        if not self._server.up or self._server.apply(Resume()) is not None:
            self._clock.after(1.0, self._resume)  # the pause waits for the epoch's end

    def _release(self, fault: Fault, node: Node) -> None:
        match fault.kind:
            case "restart":
                if not node.running and node.stop is None and not self._server.finished:
                    node.boot(disk=fault.disk)
            case "pause":
                node.unpause()
            case "slow":
                node.slowed.remove(fault.amount)
            case "slow-downlink":
                node.downlinks.remove(fault.amount)
            case "full-disk":
                node.full_disks -= 1
            case "empty-results":
                node.empty_results.remove(fault.amount)
            case "failing-work":
                node.failing_work.remove(fault.amount)
            case "slow-rpc":
                node.rpc_lags.remove(fault.amount)
                self._server.notify(node)
            case "failing-rpc":
                node.rpc_fails.remove(fault.amount)
            case "skew":
                now = node.now
                node.clock_rate = 1.0
                node.clock_offset = now - self._clock.now
            case kind if kind in ALL_LIES:
                self._lies.end(node, kind)
