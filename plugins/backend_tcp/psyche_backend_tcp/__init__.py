"""Coordinator over TCP: a server that hosts a run, the client's connection to it, and the run's data server.

`hooks` registers them. `server` hosts the coordinator, `client` is a member's side, `data` serves training data; both servers use
`connections` (TLS and login). `protocol` is what client and coordinator say to each other, `limits` what is allowed.
"""
