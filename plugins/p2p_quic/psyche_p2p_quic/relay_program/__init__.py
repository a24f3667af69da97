"""The programs around a relay: `service` puts relay and observer together, `command` is `psyche relay run`, `beside_coordinator`
is what `psyche server run --with-relay` uses, `members` follows runs, `token_file` reads tokens.
"""
