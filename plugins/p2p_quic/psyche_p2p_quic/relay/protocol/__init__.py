"""The bytes between a relay and its clients: no sockets, no clock, no policy.

A connection begins with `http` and `tls`; `websocket` carries frames, `handshake` proves a client's id, and `frames` are the
frames after that.
"""
