"""The payload that is sent: selects coefficients (`top_k`), encodes them (`codec`, `bit_packing`), caches decodings
(`vote_cache`).
"""
