"""`python -m mementum`: the command line."""

from __future__ import annotations

from mementum.cli.main import main

if __name__ == "__main__":
    main()
