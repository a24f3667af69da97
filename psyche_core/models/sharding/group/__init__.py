"""The processes of one group of ranks: how they start, meet, exchange tensors and notice each other's end.

`processes` starts those of one machine, `rendezvous` and `secret` let the right ones in, `collectives` moves tensors,
`failure_detector` tells when a rank has died. What ranks compute is outside this package.
"""
