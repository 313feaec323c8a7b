# Install every package of a folder, offline. dpkg orders them itself when it gets them all at once.
install_debs() {
    set -- "$1"/*.deb
    [ -e "$1" ] || { echo "no packages to install"; return 0; }
    DEBIAN_FRONTEND=noninteractive dpkg --install --force-unsafe-io --refuse-downgrade "$@"
    DEBIAN_FRONTEND=noninteractive dpkg --configure --pending
    rm -f /var/log/dpkg.log /var/log/alternatives.log /var/cache/ldconfig/aux-cache /var/lib/dpkg/*-old
}
