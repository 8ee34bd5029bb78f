"""`python -m advisor`, and the `advisor` command."""

import sys

from advisor.cli import main


def run() -> None:
    """Run the command line and leave with its exit code."""
    sys.exit(main())


if __name__ == "__main__":
    run()
