"""Checks what a program gives to `Client` and `Coordinator` before anything starts, and converts it to what the core uses.

`checks` checks plain values, `objects` and `held_out` make registrations of plugins, `settings` makes the client's settings, and
`callbacks` isolates training from a program's functions.
"""
