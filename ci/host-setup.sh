#!/usr/bin/env bash
# Put on this machine what the tests and the rehearsal need: Debian or Ubuntu, as root. Safe to run again.
# Nothing is started: tests and rehearsal run private engines and a private sshd of their own.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
export PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"

# program:package, or programs that do the same; a test compares them with dih20/rehearse/host_packages.py and the READMEs
needed="dockerd:docker.io sshd:openssh-server ssh-keygen:openssh-client debootstrap:debootstrap zstd:zstd git:git chromium,google-chrome:chromium"

missing=()
for pair in $needed; do
    programs=${pair%%:*}
    for program in ${programs//,/ }; do
        command -v "$program" >/dev/null && continue 2
    done
    missing+=("${pair##*:}")
done
# ./inv makes a virtual environment; Debian keeps the module for it in a package of its own
for python in python3 python3.13 python3.12 python3.11; do
    if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        found=$python
        break
    fi
done
if [ -z "${found:-}" ]; then
    missing+=(python3 python3-venv)
elif ! "$found" -c 'import ensurepip, venv' 2>/dev/null; then
    missing+=("$(basename "$(readlink -f "$(command -v "$found")")")-venv")
fi

if [ "${#missing[@]}" -eq 0 ]; then
    echo "host-setup: nothing missing"
    exit 0
fi
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "host-setup: missing ${missing[*]}; this needs root and apt-get (Debian or Ubuntu): install these packages by hand, then run again" >&2
    exit 2
fi

# packages must not start their services here: while this file says 101, Debian's tools leave them stopped
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi
echo "host-setup: installing ${missing[*]}"
apt-get update -qq
# Ubuntu has chromium as a snap only, which does not run headless as root; the rest must not wait for it
if [[ " ${missing[*]} " == *" chromium "* ]] && [ -z "$(apt-cache madison chromium)" ]; then
    echo "host-setup: no package chromium here; tests of the status page need it or google-chrome on the PATH" >&2
    packages=()
    for package in "${missing[@]}"; do
        [ "$package" = chromium ] || packages+=("$package")
    done
    missing=("${packages[@]}")
fi
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
echo "host-setup: done"
