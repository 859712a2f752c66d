#!/usr/bin/env bash
# Makes sure that a JDK 17 or later is there, and other tools when asked for (`need_jdk.sh maven kcat npm go`): installs
# them where Debian's packages and root allow it, and otherwise says in one line what is missing.
set -euo pipefail

java_major() {
    command -v java >/dev/null || { echo 0; return; }
    local version
    version=$(java -XshowSettings:properties -version 2>&1 | sed -n 's/^ *java\.specification\.version = //p')
    echo "${version%%.*}"
}

missing() {
    [ "$(java_major)" -ge 17 ] || echo default-jdk-headless
    local tool
    for tool in "$@"; do
        case $tool in
            maven) command -v mvn >/dev/null || echo maven ;;
            go) command -v go >/dev/null || echo golang-go ;;
            *) command -v "$tool" >/dev/null || echo "$tool" ;;
        esac
    done
}

packages=$(missing "$@" | xargs)
[ -n "$packages" ] || exit 0

if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    echo "interop: installing $packages from Debian's packages"
    export DEBIAN_FRONTEND=noninteractive
    apt-get -qq update >/dev/null || true
    for package in $packages; do # each by itself: one that cannot be had leaves the others
        apt-get -qq install -y --no-install-recommends "$package" >/dev/null || true
    done
    packages=$(missing "$@" | xargs)
fi

if [ -n "$packages" ]; then
    echo "interop: needs a JDK 17 or later (java)${*:+, }$* on the PATH; not found: $packages" >&2
    exit 1
fi
