"""Where a process begins: `python -m roundround` and `roundround` are the same.

Signals first, before anything slow is imported; then the streams; then the verbs.
"""

from __future__ import annotations

import sys

from roundround.interruption import end_at_once, on_signals


def main() -> None:
    on_signals(end_at_once)
    from roundround.console import open_streams

    open_streams()
    from roundround.cli import run

    raise SystemExit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
