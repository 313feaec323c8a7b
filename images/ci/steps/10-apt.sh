# The locked apt packages, offline, without what their installation draws at random or takes from the clock.
set -eu
. /mnt/lib/dpkg.sh
install_debs /mnt/debs
# host keys are secrets: tests make their own
rm -f /etc/ssh/ssh_host_*
# the day on which an account was made
sed -i -E 's/^([^:]*:[^:]*:)[0-9]+:/\120089:/' /etc/shadow
rm -f /etc/passwd- /etc/group- /etc/shadow- /etc/gshadow-
