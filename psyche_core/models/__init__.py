"""Models for training.

`hf` wraps transformers models, `torch_module` any other module, `sharding` divides a model among processes; `memory` measures how
much memory a computation takes.
"""
