# The locked apt packages, offline.
set -eu
. /mnt/lib/dpkg.sh
install_debs /mnt/debs
# the server's installation makes host keys; no two machines may share them, and tests make their own
rm -f /etc/ssh/ssh_host_*
