"""What a program gives to `Client` and `Coordinator`, checked before anything is begun and made into what the core works with.

`checks` are of plain values, `objects` and `held_out` make registrations of plugins, `settings` the client's settings, and
`callbacks` keeps a program's functions from disturbing the training.
"""
