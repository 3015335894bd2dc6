"""`python -m toolrl`: the same as the command `toolrl`."""

import sys

from toolrl.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
