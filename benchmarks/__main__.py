"""`python -m benchmarks`: the same as `headrace bench`, or a program of this package by its name:
`python -m benchmarks spark --records 2000000`."""

import importlib.util
import runpy
import sys

from headrace.cli.main import main

name = f"{__package__}.{sys.argv[1]}" if sys.argv[1:] and sys.argv[1].isidentifier() else ""
if name and importlib.util.find_spec(name):
    del sys.argv[1]
    runpy.run_module(name, run_name="__main__", alter_sys=True)
else:
    main(["bench", *sys.argv[1:]])
