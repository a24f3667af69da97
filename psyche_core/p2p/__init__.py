"""The parts that every transport between members needs, without I/O: the log of live messages, blobs by hash and by offer, the
choice of the next peer to ask for a blob, for how long it is waited for (`patience`), and the manifest and description of a model
that is fetched piece by piece. For runs with too many members to connect all of them: who is connected with whom (`overlay`), how
messages spread (`spread`), and who fetches which result from whom (`holders`, `downloads`, `uploads`).
"""
