"""Running `python -m fedaccord.cli` is the same as running `fedaccord`."""

import sys

from fedaccord.cli import main

if __name__ == "__main__":
    sys.exit(main())
