#!/bin/sh
# Build one wheel inside the image, without network. The caller has cleared the environment.
#   /di/source        the tree (read-only; copied, so that the build may write)
#   /di/git           its .git, when the vendor takes its version from there (may be absent)
#   /di/requirements  wheels that the build needs (may be absent)
#   /di/job           this script and sorted_listing.py; headers.json when headers are asked for; driver_stub.c when it
#                     links with -lcuda
#   /di/out           where the wheel and peak-memory go
set -eu
umask 022
report_peak() {
    code=$?
    for file in /sys/fs/cgroup/memory.peak /sys/fs/cgroup/memory/memory.max_usage_in_bytes; do
        if [ -r "$file" ]; then cp "$file" /di/out/peak-memory; break; fi
    done
    exit "$code"
}
trap report_peak EXIT

mkdir -p "$HOME" "$TMPDIR" /build/wheel /build/site
cp /di/job/sorted_listing.py /build/site/sitecustomize.py
cp -R /di/source /build/source
chmod -R u+w /build/source

if [ -f /di/job/headers.json ]; then
    echo "== headers"
    python3 /di/job/headers.py check --facts /di/job/headers.json || { touch /di/out/headers-missing; exit 12; }
fi
if [ -d /di/requirements ]; then
    echo "== build requirements"
    python3 -m pip install --quiet --no-index --no-deps --no-compile --target /build/site \
        /di/requirements/*.whl
fi
if [ -f /di/job/driver_stub.c ]; then
    echo "== link-time stand-in for the driver library"
    mkdir -p /build/stubs
    gcc -w -shared -fPIC -Wl,-soname,libcuda.so.1 -o /build/stubs/libcuda.so /di/job/driver_stub.c
fi
cd /build/source
if [ -d /di/git ]; then
    # For vendors that ask git for their version. They refuse a changed tree, so what was changed becomes a
    # commit of its own on top; its name and the wheel's version say what changed it.
    cp -R /di/git .git
    git add --all
    git diff --cached --quiet HEAD || git -c user.name=dih20 -c user.email=dih20@localhost \
        commit --quiet --message "$DI_MARKER"
    echo "== git: commit $(git rev-parse --short=12 HEAD)"
fi
echo "== build"
python3 -m pip wheel --verbose --no-index --no-deps --no-build-isolation --wheel-dir /build/wheel .
cp /build/wheel/*.whl /di/out/
