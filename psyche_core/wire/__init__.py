"""Communication between machines.

`codec` is canonical CBOR with limits, `frames` are frames of a byte stream, `messages` what members say to each other and its
signed envelope, `signing` keys and signatures, `key_files` where secrets are kept, `diff` differences of states.
"""
