# Inside the image, once: packages besides the image's own, in an environment that sees both. Nothing of the image's is
# replaced: constraints.txt names every version that it has.
set -eu
here=$1
shift
. /mnt/lent.sh
python3 -m venv --system-site-packages --without-pip "$here"
exec "$here/bin/python3" -m pip install --no-input --disable-pip-version-check --no-warn-script-location \
    --constraint "$here/constraints.txt" "$@"
