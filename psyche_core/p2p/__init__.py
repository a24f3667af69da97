"""The parts that every transport between members needs, without I/O: the log of live messages, blobs by hash and by offer, the
choice of the next peer to ask for a blob, and the manifest and description of a model that is fetched piece by piece.
"""
