"""Commands that load a model on this machine: `psyche evaluate`, `generate` and `train-local`."""
