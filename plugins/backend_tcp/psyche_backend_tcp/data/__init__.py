"""The run's data server, and the `Server` data location that reads from it.

`server` and `shared_connection` own the sockets; `server_state` and `client_state` decide; `protocol` and `body` encode; a client
reads from `provider`.
"""
