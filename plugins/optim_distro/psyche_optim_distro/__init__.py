"""DisTrO as a Psyche optimizer plugin. Importing this package imports no torch; `hooks` registers it.

`optimizer` defines the order of a step, `compress` and `update` are the contracts of its two halves, and `backends` implements
both. These use `chunks`, `payload` and `direction`. `sharding` divides a model with DeepSpeed.
"""
