"""`python -m aiak_tune`: the same as the `aiak-tune` command."""

import sys

from aiak_tune.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
