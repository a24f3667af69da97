"""A peer of hivemind's DHT that does not train: where members meet. Prints its address (libp2p) and stays.

python -m benchmarks.peers.workers.hivemind_meeting IPV4_ADDRESS
"""

from __future__ import annotations

import signal
import sys

import hivemind


def main() -> None:
    """See the module."""
    dht = hivemind.DHT(host_maddrs=[f"/ip4/{sys.argv[1]}/tcp/0"], start=True, use_relay=False, use_auto_relay=False)
    (address, *_) = [str(each) for each in dht.get_visible_maddrs() if sys.argv[1] in str(each)]
    print(address, flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
