"""All constants of this transport, in one frozen value that other programs and tests may replace."""

from __future__ import annotations

from dataclasses import dataclass, field

from psyche_core.p2p.message_log import LogLimits
from psyche_core.p2p.overlay import DEGREE, FULL_MESH


@dataclass(frozen=True, slots=True, kw_only=True)
class QuicSettings:
    """Times are seconds, sizes bytes. Raises ValueError for more visits than guests.

    heartbeat_seconds, silent_beats: a ping is sent each beat; a peer that sent nothing for that many beats counts as dead.
    inventory_beats: at most one comparison of live messages per peer in that many beats. gossip_seconds, gossip_peers: ids of
    messages from others are sent to this many members, chosen at random each time, this long after the first message came. By
    then most members have them from their authors.

    handshake_seconds: timeout of a dial and the exchange of hellos. dial_grace_seconds: how long the peer with the larger key
    waits for the other to dial. retry_seconds, retry_most_seconds: first and longest pause between dials; it doubles each time.
    Half of the longest passes until a member is dialled again that had no place for us.
    dials_per_peer, dials_per_host: tries an hour at published addresses that are not proved, see `dial_budget`: for each
    member, and for each host; as many at once. One host may run all 256 members of a run. penalty_seconds: how long a peer that
    broke the rules is refused. false_blobs: wrong blobs from a peer until it is refused.

    overlay_above, overlay_degree: a run with more members than this is not connected between all, if the transport is told a
    seed: each member has at most so many neighbours, see `psyche_core.p2p.overlay`. All members of a run need the same two, or
    they choose different neighbours; so they are no options of a member. guests: most connections with members that are no
    neighbours. arrivals: so many more may be between their arrival and their hello, for hello_seconds each.
    guest_idle_seconds: a guest's connection ends after this time without a transfer. guest_turn_seconds: after this time, up to
    half of it more or less, it ends if another guest needs its place. visits: so many of these places are for members that we
    dial for transfers, which get them even if guests have taken all. visit_seconds: how long only the members named as sources
    are asked for a blob while we dial one of them.

    announcement_seconds: how long a result is waited for that no connected member has announced, holder_seconds: how long one is
    that some have, both since the last result came; then its author is dialled. turn_seconds: after this time the next result is
    sent beside one that is taken slowly.

    relay_check_seconds: how often we check whether a relay has admitted us; after two failures in a row we ask it why.
    relay_seconds: how long `use_relays` waits until we can be reached through a relay and know our external address.
    address_seconds: how often we check whether our own address has changed. interface_seconds: the same for the interface's
    addresses, which are bound if they changed.

    handshakes: most incoming connections between arrival and hello at once. handshakes_per_peer: the same for one key.
    sessions_per_minute, session_burst: connections with one peer, however they end: a burst at once, and more as time passes.
    refusals_per_minute: those that end because all guests' places are taken, which count here only; half of them at once.
    frame_bytes: longest frame on the control stream. send_queue_bytes: unsent frames for a peer until it is disconnected because
    it does not read. frames_per_second, frame_burst: how fast frames of a peer are read; further frames wait.

    hedge_seconds, hedge_bytes: when a blob source sends fewer bytes than this in that time, another is asked too.
    hedge_rest_seconds: another is also asked when a source needs longer than this for the rest at its rate; in an overlay its
    rate is measured in such a time. hedge_sources: most sources that are asked for one blob at the same time. again_seconds: when
    all that may have the blob are slow or not reachable, members that did not have it are asked again after this time, then after
    twice as long, and so on. chunk_bytes: of one blob write. stall_seconds: longest wait for a single read or write of a blob.

    streams_served: blob requests of one peer at once; more break the rules. streams_asked: the same for ours, well below it.
    requests_per_second, request_burst: blob requests of one peer; ten that are answered with 64 KiB or more count as one. Further
    requests wait in the library.
    offers_read, offers_read_per_peer: offered blobs in memory at once while they are sent, in total and for one peer; further
    requests wait. read_threads: how many of them are read and hashed at once. store_blobs, store_bytes: most blobs kept.
    offers: most blobs offered from elsewhere. close_seconds: longest wait for an orderly end.
    """

    heartbeat_seconds: float = 1.0
    silent_beats: int = 6
    inventory_beats: int = 2
    gossip_seconds: float = 0.05
    gossip_peers: int = 6
    handshake_seconds: float = 10.0
    dial_grace_seconds: float = 2.0
    retry_seconds: float = 0.1
    retry_most_seconds: float = 5.0
    dials_per_peer: int = 64
    dials_per_host: int = 256
    penalty_seconds: float = 30.0
    false_blobs: int = 3

    overlay_above: int = FULL_MESH
    overlay_degree: int = DEGREE
    guests: int = 9
    arrivals: int = 3
    hello_seconds: float = 5.0
    guest_idle_seconds: float = 5.0
    guest_turn_seconds: float = 30.0
    visits: int = 6
    visit_seconds: float = 2.0
    announcement_seconds: float = 10.0
    holder_seconds: float = 20.0
    turn_seconds: float = 10.0

    relay_check_seconds: float = 10.0
    relay_seconds: float = 5.0
    address_seconds: float = 1.0
    interface_seconds: float = 2.0

    handshakes: int = 128
    handshakes_per_peer: int = 4
    sessions_per_minute: float = 10.0
    session_burst: int = 20
    refusals_per_minute: float = 60.0
    frame_bytes: int = 256 * 1024
    send_queue_bytes: int = 32 * 2**20
    frames_per_second: float = 2000.0
    frame_burst: int = 16_384

    hedge_seconds: float = 0.5
    hedge_bytes: int = 4096
    hedge_rest_seconds: float = 3.0
    again_seconds: float = 1.0
    hedge_sources: int = 3
    chunk_bytes: int = 2**19
    stall_seconds: float = 10.0
    streams_served: int = 48
    streams_asked: int = 16
    requests_per_second: float = 200.0
    request_burst: int = 400
    offers_read: int = 64
    offers_read_per_peer: int = 8
    read_threads: int = 4
    offers: int = 65_536
    store_blobs: int = 16_384
    store_bytes: int = 2 * 2**30
    close_seconds: float = 0.5

    log: LogLimits = field(default_factory=LogLimits)

    def __post_init__(self) -> None:
        if self.visits > self.guests:
            message = f"visits take places of guests, so there can be no more than {self.guests} at once, got {self.visits}"
            raise ValueError(message)
