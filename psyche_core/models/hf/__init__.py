"""Implementation of the Hugging Face architectures. `psyche_core.builtin.hf_models` registers them.

`model` is the interface's model, over a `replica` for each device. `configuration`, `weights`, `empty_model` and `model_types`
load it, `saving` and `tensor_files` write it, `batches` makes tensors of samples, `devices` finds devices by name.
"""
