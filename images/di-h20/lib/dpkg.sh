# Install every package of a folder, offline. dpkg orders them itself when it gets them all at once.
# Exit code 8: a package is not the locked one; then nothing was installed.
install_debs() {
    [ -s "$1/SHA256SUMS" ] || { echo "no packages to install"; return 0; }
    (cd "$1" && sha256sum --check --strict --quiet SHA256SUMS) || exit 8
    set -- "$1"/*.deb
    export DEBIAN_FRONTEND=noninteractive
    # What pre-depends on a package of the same call is refused while that one is not configured; a second call takes it.
    dpkg --install --force-unsafe-io --refuse-downgrade "$@" ||
        dpkg --install --force-unsafe-io --refuse-downgrade --skip-same-version "$@"
    dpkg --configure --pending
    rm -f /var/log/dpkg.log /var/log/alternatives.log /var/cache/ldconfig/aux-cache /var/lib/dpkg/*-old
}
