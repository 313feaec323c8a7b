# The environment of ./inv and its group dev, from the locked files. The stamps are what the launcher and the tasks
# compare with requirements/*.lock: where they agree, nothing is installed, so nothing needs a network.
set -eu
venv=/opt/di/venv
python3 -m venv "$venv"
"$venv/bin/python" /mnt/lib/pip_install.py /mnt/requirements
find "$venv" -depth -type d -name __pycache__ -exec rm -r {} +
PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1 "$venv/bin/python" -m compileall -qq --invalidation-mode unchecked-hash "$venv/lib" || true
cksum </mnt/lib/base.lock >"$venv/.lock-stamp"
sha256sum </mnt/lib/dev.lock | cut -d ' ' -f 1 | tr -d '\n' >"$venv/.lock-stamp-dev"
