# torch for CPU as Debian packs it: enough for the reference engine, and a tenth of the size of the CUDA wheels.
set -eu
. /mnt/lib/dpkg.sh
install_debs /mnt/serve-cpu
python3 -c 'import torch; print("torch", torch.__version__, "CUDA", torch.version.cuda)'
