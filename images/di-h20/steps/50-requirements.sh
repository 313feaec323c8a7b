# The engine's python packages, without torch.
set -eu
python3 /mnt/lib/pip_install.py /mnt/requirements
python3 /mnt/lib/nccl.py --expect /mnt/nccl.version
