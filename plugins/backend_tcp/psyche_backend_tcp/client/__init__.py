"""A member's connection to the coordinator server.

`connection` is the backend: sockets, time limits, new connections after losses. `session` is the protocol without sockets.
"""
