"""`python -m benchmarks`: the same as `headrace bench`."""

import sys

from headrace.cli.main import main

main(["bench", *sys.argv[1:]])
