"""The client: `machine` decides, `runtime` carries its `actions` out, `model_sync` exchanges models, `setup` puts it together."""
