#!/bin/sh
# What `make test` runs after the linters: `test.sh VENV [TESTS...]`. The test runner's closing line
# is the last one printed.
set -u
venv=$1
shift
sh scripts/system_tools.sh
log=$(mktemp -d)
trap 'rm -rf "$log"' EXIT
# Five processes on two cores, because half of the tests wait for servers (decision 17). mypy and the
# build of the S3 server run beside them.
"$venv/bin/mypy" >"$log/mypy" 2>&1 &
mypy=$!
"$venv/bin/python" -m tests.s3_server &
{
    "$venv/bin/python" -m pytest --numprocesses 5 --dist loadscope "$@" 2>&1
    echo $? >"$log/tests.code"
} | tee "$log/tests"
tests=$(cat "$log/tests.code")
wait "$mypy"
types=$?
cat "$log/mypy"
# mypy, and clients' threads at the very end, print after pytest: repeat what counts.
closing=$(grep -aE '^(=+ )?[0-9]+ (passed|failed|error|skipped|xfailed|deselected).* in [0-9.]+s' "$log/tests" | tail -n 1)
[ -z "$closing" ] || echo "$closing"
[ "$tests" -ne 0 ] && exit "$tests"
exit "$types"
