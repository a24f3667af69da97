"""Commands that load a model on this machine.

`evaluate`, `generate` and `train_local`; `computing_options` are the options that the first two share.
"""
