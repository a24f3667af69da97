"""The coordinator server: the `Hub` decides, `tcp_server` acts.

`documents` are the states that clients follow, `key_records` what is known of a key; `initial_state` and `state_store` keep the
state on disk. The coordinator's rules are in psyche-core.
"""
