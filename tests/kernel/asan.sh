#!/bin/sh
# The compiled kernel under AddressSanitizer: builds it into a temporary directory and fuzzes it there, with the
# messages of `wire`, of which it reads ten times as many as logs.
#
#   tests/kernel/asan.sh [rounds] [seed]
#
# PYTHONMALLOC=malloc gives every object its own guarded block. Ends with status 0 when nothing was found.
set -eu
rounds=${1:-100000}
seed=${2:-$(date +%s)}
root=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-$root/.venv/bin/python}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

mkdir -p "$work/src/stratalog"
cp "$root/setup.py" "$work/"
cp -r "$root/src/stratalog/kernel" "$work/src/stratalog/"
cp "$root/src/stratalog/model.py" "$root/src/stratalog/errors.py" "$work/src/stratalog/"
cp -r "$root/src/stratalog/wire" "$work/src/stratalog/"
: > "$work/src/stratalog/__init__.py" # the kernel imports nothing of the package
rm -f "$work"/src/stratalog/kernel/*.so "$work"/src/stratalog/kernel/*.pyd

cd "$work"
STRATALOG_CFLAGS="-fsanitize=address -fno-omit-frame-pointer -O1 -g1" STRATALOG_LDFLAGS="-fsanitize=address" \
    "$python" setup.py -q build_ext -j 2 --build-lib "$work/src" > "$work/build.log" 2>&1 ||
    { cat "$work/build.log"; exit 1; }

fuzz() {
    LD_PRELOAD="$(gcc -print-file-name=libasan.so)" \
        ASAN_OPTIONS=detect_leaks=0:abort_on_error=0:allocator_may_return_null=1 \
        PYTHONMALLOC=malloc PYTHONPATH="$work/src" \
        "$python" "$@"
}
fuzz "$root/tests/wire/fuzz_wire.py" --rounds "$((rounds * 10))" --seed "$seed"
fuzz "$root/tests/kernel/fuzz_kernel.py" --rounds "$rounds" --seed "$seed"
