"""DisTrO as a Psyche optimizer plugin. Importing this package imports no torch; `hooks` registers it.

`optimizer` says in which order a step is made, `compress` and `update` are the contracts of its two halves, and `backends` does
both. These use `chunks`, `payload` and `direction`. `sharding` divides a model by DeepSpeed.
"""
