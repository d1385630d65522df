# Inside the image, once: packages besides the image's own, in an environment that sees both. Nothing of the image's is
# replaced: constraints.txt names every version that it has.
set -eu
here=$1
shift
. /mnt/lent.sh
# NVIDIA's images up to 24.x name an index that nobody serves any more: pip would ask it for every project, several times.
if [ -z "${PIP_EXTRA_INDEX_URL:-}" ]; then
    python3 /mnt/live_indexes.py >"$here/indexes" || : >"$here/indexes"
    if [ -s "$here/indexes" ]; then
        PIP_EXTRA_INDEX_URL=$(head -n 1 "$here/indexes") # a blank names none, and overrides the image's files
        export PIP_EXTRA_INDEX_URL
        sed -n '2,$s/^/the image names an extra index that does not answer; it is left out: /p' "$here/indexes"
    fi
    rm -f "$here/indexes"
fi
python3 -m venv --system-site-packages --without-pip "$here"
exec "$here/bin/python3" -m pip install --no-input --disable-pip-version-check --no-warn-script-location \
    --constraint "$here/constraints.txt" "$@"
