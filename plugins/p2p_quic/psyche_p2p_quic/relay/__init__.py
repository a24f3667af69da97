"""A relay for iroh endpoints: forwards encrypted datagrams between members that cannot reach each other directly.

Pure, with no socket and no clock: `frames`, `handshake`, `websocket`, `http` and `tls` know the bytes, `limits` and `access` what
is allowed, `client` one connection's life, `router` who gets what, `metrics` what is counted. `server` is the shell: it owns the
sockets, tells the time, and carries out what the others decide. The command and its options are in `relay_program`.
"""
