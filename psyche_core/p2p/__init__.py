"""What every transport between members needs, without I/O: the log of live messages, blobs by hash and by offer, which peer to
ask for a blob next, and the descriptions of a model that is fetched piece by piece.
"""
