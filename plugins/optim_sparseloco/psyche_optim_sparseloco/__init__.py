"""SparseLoCo as a Psyche optimizer plugin. Importing this package imports no torch; `hooks` registers it.

`optimizer` says in which order a step is made. `inner_adamw` moves local weights, `layout` cuts the parameters into chunks,
`top_k` chooses what is sent, `quantizer` makes two bits of each value, and `codec` (with `bit_packing`) makes bytes.
"""
