# Inside the image, by the uv that hpcstack brings: `lock` chooses versions for what a project asks for, `install` puts what
# is locked into a virtual environment that also sees the image's packages. /mnt has what it needs, and gets what it makes.
# Arguments: lock [OPTIONS of uv pip compile]... | install FOLDER
set -eu
verb=$1
shift
. /mnt/lent.sh
for name in PYTHONPATH PYTHONHOME VIRTUAL_ENV; do # of this machine, unless the image sets it
    eval "[ -n \"\${$name:-}\" ]" || unset "$name"
done
export UV_PYTHON_DOWNLOADS=never UV_NO_PROGRESS=1 UV_NO_MANAGED_PYTHON=1 UV_PREVIEW_FEATURES=pylock
uv=/opt/hpcstack/uv/uv
case $verb in
lock)
    choose() {
        "$uv" pip compile --python python3 --format pylock.toml --no-header --no-annotate --quiet \
            --find-links /mnt/shims --constraint /mnt/base.txt --output-file /mnt/pylock.toml "$@"
    }
    if [ -z "${HPCSTACK_UV_LOCK:-}" ]; then
        python3 /mnt/project_base.py /mnt
        choose "$@"
        exit
    fi
    # without the network, and for this Python and this platform alone
    export_lock() {
        # shellcheck disable=SC2086 # options
        "$uv" export --quiet --frozen --no-emit-project --no-header --no-annotate --python python3 \
            --directory "$HPCSTACK_UV_LOCK" --format "$1" --output-file "$2" \
            ${HPCSTACK_UV_WITH:-} >/dev/null
    }
    export_lock requirements.txt /mnt/exported.txt
    python3 /mnt/project_base.py /mnt /mnt/exported.txt
    status=0
    choose --constraint /mnt/pins.txt "$@" 2>/mnt/refused.txt || status=$?
    if [ "$status" = 1 ]; then
        # uv keeps the versions of the file that it is to write as far as they fit
        echo "not all versions of uv.lock fit the image; as few as possible are changed"
        export_lock pylock.toml /mnt/pylock.toml
        choose "$@"
        exit
    fi
    cat /mnt/refused.txt >&2
    exit "$status"
    ;;
install)
    here=$1
    python3 -m venv --system-site-packages --without-pip "$here"
    exec "$uv" pip install --python "$here/bin/python3" --no-deps --require-hashes --link-mode copy \
        --compile-bytecode --requirements /mnt/pylock.toml
    ;;
esac
