#!/bin/sh
# Install the bundle that lies beside this script, and check the engine: sh run.sh --into FOLDER [ARGUMENTS]
# `sh run.sh --help` lists all there is. PYTHON names the Python 3.12 that has torch; python3 without it.
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
python=${PYTHON:-python3}
if ! command -v "$python" >/dev/null 2>&1; then
    echo "error: no $python" >&2
    echo "  expected: Python 3.12 with torch" >&2
    echo "  next:     PYTHON=/path/to/python3 sh run.sh ..." >&2
    exit 45
fi
if [ ! -f "$here/host/__main__.py" ]; then
    echo "error: no host/__main__.py in $here" >&2
    echo "  expected: the folder host beside run.sh, the parts and manifest.json" >&2
    echo "  next:     copy the whole folder that inv bundle wrote" >&2
    exit 2
fi
PYTHONDONTWRITEBYTECODE=1 exec "$python" "$here/host" --bundle "$here" "$@"
