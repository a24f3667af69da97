"""The canonical image: a coordinator state as bytes of a fixed size: `encode`, `decode`, and the offset of each field.

Its bytes are the same in every implementation; the program on chain keeps the state in this form. `layout` is the table of
fields, built from `kinds` (numbers, flags, strings) and `records` (tuples, lists, options); `encoding` writes and reads whole
images; `page` describes the layout for people. `python -m psyche_core.coordinator.canonical_image` prints the layout as a table,
and with `--markdown` as the page docs/reference/canonical-image.md.
"""

from psyche_core.coordinator.canonical_image.encoding import SIZE, VERSION, decode, encode, offset

__all__ = ["SIZE", "VERSION", "decode", "encode", "offset"]
