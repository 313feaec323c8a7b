# Headers that the base lacks, in an overlay of their own; the toolkit is never written to.
set -eu
python3 /mnt/lib/headers.py overlay --facts /mnt/headers.json --into /opt/di/include /mnt/headers /mnt/nccl
