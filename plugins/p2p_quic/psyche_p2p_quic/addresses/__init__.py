"""Where peers and relays are found: values and rules, without I/O but for the list of this machine's interfaces.

`peer_address` is the record that a peer publishes, `relay_urls` says how relays are named and which are used, `interfaces` which
addresses to bind. Which published addresses are dialled is decided in `connections`.
"""
