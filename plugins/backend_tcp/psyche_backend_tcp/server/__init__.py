"""The coordinator server: the `Hub` decides, and `tcp_server` does the I/O.

`documents` are the states that clients follow, and `key_records` the data about each key; `initial_state` and `state_store` keep
the state on disk. The coordinator's rules are in psyche-core.
"""
