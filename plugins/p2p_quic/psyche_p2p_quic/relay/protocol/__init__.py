"""The bytes between a relay and its clients: no sockets, no clock, no policy.

`http` and `tls` are what a connection begins with, `websocket` carries frames, `handshake` proves a client's id, `frames` is what
is said afterwards.
"""
