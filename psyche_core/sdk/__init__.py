"""The public SDK: thin façades over the packages below. Import its names from `psyche_core`, which loads them when asked for.

No rules and no protocol live here: a coordinator is a `BackendServer`, a client is that of `client.setup`, and objects become
registrations.
"""
