"""A relay for iroh endpoints: forwards encrypted datagrams between members that cannot reach each other directly.

Pure, with no socket and no clock: `protocol` knows the bytes, `limits`, `admission` and `access` what is allowed, `connection`
one connection's life, `router` who gets what, `metrics` what is counted. `server` is the shell: it owns the sockets, tells the
time, and carries out what the others decide. `login` is the other end: a client that asks whether a relay lets it in. The command
and its options are in `relay_program`.
"""
