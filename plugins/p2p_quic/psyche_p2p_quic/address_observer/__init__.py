"""The address observer of a relay: it sends a caller the address from which the caller's packets arrive.

`protocol` defines the messages for both sides (pure); `server` is the observer. The caller's side is in `endpoint`.
"""
