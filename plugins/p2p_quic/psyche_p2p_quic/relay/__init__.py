"""A relay for iroh endpoints: forwards encrypted datagrams between members that cannot reach each other directly.

Pure, with no socket and no clock: `protocol` encodes and decodes, `limits`, `admission` and `access` decide what is allowed,
`connection` handles one connection, `router` forwards, `metrics` counts, and `refusal_log` decides which refusals are logged.
`server` does the I/O: it owns the sockets, passes the time, and carries out what the others decide; `kernel_buffers` sets options
of sockets. `login` is the other side: a client that finds out whether a relay admits it. The command and its options are in
`relay_program`.
"""
