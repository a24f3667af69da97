"""Implementation of the Hugging Face architectures. `psyche_core.builtin.hf_models` registers them."""
