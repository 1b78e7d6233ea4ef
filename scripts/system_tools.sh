#!/bin/sh
# Installs what the tests use of the system, as Debian ships it: kcat, an old librdkafka client, and
# Chromium for the tests of the console. Called by `make test`.
# Without root, without apt-get or without the network it says so and the tests skip what needs it.
set -u
missing=""
for tool in kcat chromium; do
    command -v "$tool" >/dev/null 2>&1 || missing="$missing $tool"
done
if command -v chromium-browser >/dev/null 2>&1; then
    missing=$(echo "$missing" | sed 's/ chromium//')
fi
if [ -z "$missing" ]; then
    exit 0
fi
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "system tools: not installed, and only root with apt-get could install them here:$missing" >&2
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
timeout 120 apt-get update -qq >/dev/null 2>&1 </dev/null
for tool in $missing; do
    if ! timeout 300 apt-get install -y -qq --no-install-recommends "$tool" >/dev/null 2>&1 </dev/null; then
        echo "system tools: $tool could not be installed; its tests will be skipped" >&2
    fi
done
exit 0
