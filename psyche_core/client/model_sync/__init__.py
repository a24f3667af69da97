"""Transfers the whole model between members: offers and fetches it in pieces (`exchange`), its description (`description`), and
fetches many blobs from many sources at once (`multi_source`).
"""
