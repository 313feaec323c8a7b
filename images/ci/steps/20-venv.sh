# The environment of ./inv and its group dev, from the locked files. The stamps are what the launcher and the tasks
# compare with requirements/*.lock: where they agree, nothing is installed, so nothing needs a network.
set -eu
export PYTHONDONTWRITEBYTECODE=1
venv=/opt/di/venv
python3 -m venv "$venv"
"$venv/bin/python" /mnt/lib/pip_install.py /mnt/requirements
cksum </mnt/lib/base.lock >"$venv/.lock-stamp"
sha256sum </mnt/lib/dev.lock | cut -d ' ' -f 1 | tr -d '\n' >"$venv/.lock-stamp-dev"
