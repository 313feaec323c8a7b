# What the finished image must hold; changes nothing.
set -eu
git --version
python --version
python3 /mnt/lib/headers.py check --facts /mnt/headers.json
python3 /mnt/lib/nccl.py --expect /mnt/nccl.version
