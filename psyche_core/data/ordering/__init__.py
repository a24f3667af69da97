"""The seeded order of sequences and of mixtures, equal on every machine.

`chacha` draws numbers as the reference does, `fast_draws` the same with numpy; `data_shuffle` and `mixture` use them;
`dataset_index` saves an order that takes long to compute.
"""
