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
    # shellcheck disable=SC2086 # a list of names
    { apt-get -qq update && apt-get -qq install -y --no-install-recommends $packages; } >/dev/null
    packages=$(missing "$@" | xargs)
fi

if [ -n "$packages" ]; then
    echo "interop: needs a JDK 17 or later (java)${*:+, }$* on the PATH; not found: $packages" >&2
    exit 1
fi
