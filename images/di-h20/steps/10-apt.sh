# The locked apt packages, offline.
set -eu
. /mnt/lib/dpkg.sh
install_debs /mnt/debs
