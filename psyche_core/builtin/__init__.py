"""The plugins included in psyche-core, registered through the same hooks as all others.

`hooks` registers them. Backend and transport: `memory_backend`, `memory_transport` and the two together in `memory_server`. Data:
`local_data`, `preprocessed_data`, `dummy_data`. Models: `hf_models`. Optimizers: `adamw`,
`dummy_optimizer`.
"""
