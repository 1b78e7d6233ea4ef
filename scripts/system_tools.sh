#!/bin/sh
# Installs what the tests use of the system: kcat, an old librdkafka client that Debian ships. Called by
# `make test`.
# Without root, without apt-get or without the network it says so and the tests skip what needs it.
set -u
if command -v kcat >/dev/null 2>&1; then
    exit 0
fi
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "system tools: kcat is not installed, and only root with apt-get could install it here" >&2
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
if ! { timeout 120 apt-get update -qq && timeout 120 apt-get install -y -qq --no-install-recommends kcat; } \
    >/dev/null 2>&1 </dev/null; then
    echo "system tools: kcat could not be installed; its tests will be skipped" >&2
fi
exit 0
