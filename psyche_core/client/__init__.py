"""The client: a pure machine, a thin runtime, and one room per concern. Embedders start at `runtime.ClientRuntime`."""
