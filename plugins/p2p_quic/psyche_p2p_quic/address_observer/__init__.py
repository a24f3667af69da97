"""The address observer of a relay: it tells a caller from which address the caller's packets arrive.

`protocol` defines the messages for both sides (pure); `server` is the observer. The caller's side is in `endpoint`.
"""
