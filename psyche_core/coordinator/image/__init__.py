"""The canonical image of a coordinator state: `encode`, `decode`, and the offset of each field.

`layout` is the table of fields, built from `kinds` (numbers, flags, strings) and `records` (tuples, lists, options); `encoding`
writes and reads whole images; `page` describes the layout for people. `python -m psyche_core.coordinator.image` prints the
layout as a table, and with `--markdown` as the page docs/reference/canonical-image.md.
"""

from psyche_core.coordinator.image.encoding import SIZE, VERSION, decode, encode, offset

__all__ = ["SIZE", "VERSION", "decode", "encode", "offset"]
