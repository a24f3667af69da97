"""The whole model between members: offered and fetched in pieces (`exchange`), its description (`description`), and many blobs
from many sources at once (`multi_source`).
"""
