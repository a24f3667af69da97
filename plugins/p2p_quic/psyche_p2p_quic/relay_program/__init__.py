"""The programs around a relay: `service` combines relay and observer, `command` is `psyche relay run`, `psyche server run
--with-relay` uses `beside_coordinator`, `members` follows runs, and `token_file` reads tokens.
"""
