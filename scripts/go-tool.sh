#!/bin/sh
# Builds a program in Go that tests use, pinned, checked by Go's checksum database: `go-tool.sh helm|toxiproxy|versitygw`.
# Where it cannot be built, the tests that use it are skipped and say so. It needs a few minutes of CPU, once.
set -eu
name=$1
target=${2:-.cache/bin}
case $name in
helm) version=v3.22.0 package=helm.sh/helm/v3/cmd/helm ;;
toxiproxy) version=v2.12.0 package=github.com/Shopify/toxiproxy/v2/cmd/server ;;
versitygw) version=v1.8.0 package=github.com/versity/versitygw/cmd/versitygw ;;
*) echo "go-tool: helm, toxiproxy or versitygw, not $name" >&2 && exit 2 ;;
esac
[ -x "$target/$name-$version" ] && exit 0
command -v go >/dev/null || { echo "go-tool: no Go here: tests that use $name will be skipped" >&2; exit 0; }
mkdir -p "$target"
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
echo "go-tool: building $name $version for the tests (some minutes, once)"
# Without optimisation and debugging information: a third less CPU.
GOBIN="$work/bin" GOPATH="$work/go" GOCACHE="$work/cache" GOFLAGS=-buildvcs=false \
    go install -ldflags="-s -w" -gcflags=all="-N -l -dwarf=false" "$package@$version" >"$work/log" 2>&1 || {
    tail -5 "$work/log" >&2
    echo "go-tool: $name cannot be built: tests that use it will be skipped" >&2
    exit 0
}
mv "$work"/bin/* "$target/$name-$version"
