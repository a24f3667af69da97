"""Print the layout of the canonical image, as a table or as a page of the reference."""

from __future__ import annotations

import sys

from psyche_core.coordinator.canonical_image.page import markdown, table


def main(arguments: list[str]) -> int:
    """Print the layout and return the exit code: 0, or 2 for arguments other than none or `--markdown`."""
    if arguments not in ([], ["--markdown"]):
        print("usage: python -m psyche_core.coordinator.canonical_image [--markdown]", file=sys.stderr)
        return 2

    print(markdown() if arguments else table(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
