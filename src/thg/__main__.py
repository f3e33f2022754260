"""`python -m thg` is the `thg` command."""

import sys

from thg.cli import main

if __name__ == "__main__":
    sys.exit(main())
