#!/bin/sh
# Builds a real S3 server for the tests of tiering: VersityGW, pinned, checked by Go's checksum
# database. Where there is no Go, those tests are skipped and say so. Called by tests/s3_server.py.
set -eu
version=v1.8.0
target=${1:-.cache/bin}
command -v go >/dev/null || { echo "s3-server: no Go here: tests against a real S3 server will be skipped" >&2; exit 0; }
[ -x "$target/versitygw-$version" ] && exit 0
mkdir -p "$target"
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
echo "s3-server: building VersityGW $version for the tests (a minute or two, once)"
# Without optimisation and debugging information: 69 s of CPU instead of 112.
GOBIN="$work/bin" GOPATH="$work/go" GOCACHE="$work/cache" GOFLAGS=-buildvcs=false \
    go install -ldflags="-s -w" -gcflags=all="-N -l -dwarf=false" \
    "github.com/versity/versitygw/cmd/versitygw@$version" >"$work/log" 2>&1 || {
    tail -5 "$work/log" >&2
    echo "s3-server: it cannot be built: tests against a real S3 server will be skipped" >&2
    exit 0
}
mv "$work/bin/versitygw" "$target/versitygw-$version"
