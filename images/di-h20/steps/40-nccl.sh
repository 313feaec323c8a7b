# The locked NCCL in place of the one that torch brought.
set -eu
python3 /mnt/lib/pip_install.py /mnt/nccl
python3 /mnt/lib/nccl.py --expect /mnt/nccl.version
