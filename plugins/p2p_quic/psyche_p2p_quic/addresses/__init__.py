"""Addresses of peers and relays: values and rules, without I/O except for listing this machine's interfaces.

`peer_address` is the record that a peer publishes, `relay_urls` defines how relays are named and which are used, and `interfaces`
which addresses to bind. `connections` decides which published addresses are dialled.
"""
