"""Coordinator over TCP: a server that hosts a run, the client's connection to it, and the run's data server.

`hooks` registers them. `server` hosts the coordinator, `client` is a member's side, and `data` serves training data; both servers
use `connections` (TLS and login). `protocol` defines the messages between client and coordinator, and `limits` all limits.
"""
