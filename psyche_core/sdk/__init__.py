"""The public SDK: thin façades over the packages below it. Import its names from `psyche_core`, which loads them on first use.

This package contains no protocol rules: a coordinator is a `BackendServer`, a client is the one of `client.setup`, and
`arguments` turns objects into registrations.
"""
