# `python` for build scripts that do not say python3.
set -eu
python3 --version
[ -e /usr/local/bin/python ] || ln -s "$(command -v python3)" /usr/local/bin/python
