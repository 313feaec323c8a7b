# What the finished image must hold; changes nothing.
set -eu
for program in docker git ip python3 ssh ssh-keygen sshd zstd debootstrap; do
    command -v "$program" || { echo "error: no $program in the image" >&2; exit 1; }
done
test -z "$(ls /etc/ssh/ssh_host_* 2>/dev/null)" || { echo "error: host keys are left in the image" >&2; exit 1; }
/opt/di/venv/bin/python -B -m pip check --disable-pip-version-check
/opt/di/venv/bin/python -B -m ruff --version
/opt/di/venv/bin/python -B -m pytest --version
