"""The address observer beside a relay: it tells a caller from which address the caller's packets arrive.

`protocol` is what is said, for both sides (pure); `server` is the observer. The caller's side is in `endpoint`.
"""
