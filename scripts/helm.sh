#!/bin/sh
# Builds Helm, pinned, checked by Go's checksum database, for tests/integration/test_chart.py, whose tests are
# skipped and say so where it was not built: two cores need some minutes, once.
set -eu
version=v3.22.0
target=${1:-.cache/bin}
command -v go >/dev/null || { echo "helm: no Go here: tests of the chart will be skipped" >&2; exit 1; }
[ -x "$target/helm-$version" ] && exit 0
mkdir -p "$target"
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
echo "helm: building Helm $version for the tests (some minutes, once)"
GOBIN="$work/bin" GOPATH="$work/go" GOCACHE="$work/cache" GOFLAGS=-buildvcs=false \
    go install -ldflags="-s -w" -gcflags=all="-N -l -dwarf=false" \
    "helm.sh/helm/v3/cmd/helm@$version" >"$work/log" 2>&1 || {
    tail -5 "$work/log" >&2
    echo "helm: it cannot be built: tests of the chart will be skipped" >&2
    exit 1
}
mv "$work/bin/helm" "$target/helm-$version"
