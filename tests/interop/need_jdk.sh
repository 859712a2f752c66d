#!/usr/bin/env bash
# Makes sure that a JDK 17 or later is there, and Maven too when asked for (`need_jdk.sh maven`): installs them where
# Debian's packages and root allow it, and otherwise says in one line what is missing.
set -euo pipefail

java_major() {
    command -v java >/dev/null || { echo 0; return; }
    local version
    version=$(java -XshowSettings:properties -version 2>&1 | sed -n 's/^ *java\.specification\.version = //p')
    echo "${version%%.*}"
}

missing() {
    [ "$(java_major)" -ge 17 ] || echo default-jdk-headless
    [ "${1:-}" != maven ] || command -v mvn >/dev/null || echo maven
}

packages=$(missing "$@" | xargs)
[ -n "$packages" ] || exit 0

if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    echo "interop: installing $packages from Debian's packages"
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086 # a list of names
    { apt-get -qq update && apt-get -qq install -y --no-install-recommends $packages; } >/dev/null
    packages=$(missing "$@" | xargs)
fi

if [ -n "$packages" ]; then
    echo "interop: needs a JDK 17 or later (java)${1:+ and Maven (mvn)} on the PATH; not found: $packages" >&2
    exit 1
fi
