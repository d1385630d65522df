# shellcheck shell=bash source=/dev/null
# All files that a locked stack is built from, fetched inside its base: for machines without a network.
# /opt/hpcstack/want holds what is locked, /opt/hpcstack/answers takes the files.

. /opt/hpcstack/build/lib.sh
export HOME=$HPCSTACK_WORK/home
want=/opt/hpcstack/want
answers=/opt/hpcstack/answers
mkdir -p "$answers" "$HOME"

if [ -s "$want/apt.txt" ]; then
    hpcstack_step 1/2 "apt: the locked files"
    mapfile -t packages <"$want/apt.txt"
    mkdir -p "$HPCSTACK_WORK/lists/partial" "$HPCSTACK_WORK/archives/partial"
    options=(-q -o "Dir::State::lists=$HPCSTACK_WORK/lists" -o "Dir::Cache=$HPCSTACK_WORK" -o Debug::NoLocking=1)
    apt-get "${options[@]}" update
    apt-get "${options[@]}" install -y --no-install-recommends --allow-downgrades --download-only "${packages[@]}"
    cp "$HPCSTACK_WORK"/archives/*.deb "$answers/"
fi

if [ -s "$want/dnf.txt" ]; then
    hpcstack_step 1/2 "dnf: the locked files"
    mapfile -t packages <"$want/dnf.txt"
    dnf "${HPCSTACK_DNF[@]}" --downloadonly "--downloaddir=$answers" install "${packages[@]}"
fi

hpcstack_fetch_pip() { # FILE ARGUMENTS of pip: all that FILE names, by its hashes
    local file=$1
    shift
    env -u PIP_CONSTRAINT -u PIP_BUILD_CONSTRAINT python3 -m pip download --progress-bar off --no-deps --require-hashes "$@" \
        --requirement "$want/$file" --dest "$answers"
}

if [ -s "$want/requirements.txt" ] || [ -s "$want/source-distributions.json" ] || [ -s "$want/requirements-of-base.txt" ]; then
    hpcstack_step 2/2 "pip: the locked files, and what source distributions are built with"
    hpcstack_leave_out_dead_indexes
fi
if [ -s "$want/requirements.txt" ]; then
    hpcstack_fetch_pip requirements.txt
fi
if [ -s "$want/source-distributions.json" ]; then
    for file in "$want"/build-requirements-*.txt; do
        if [ -e "$file" ]; then hpcstack_fetch_build_requirements "$file"; fi
    done
    python3 /opt/hpcstack/build/fetch_sources.py "$want/source-distributions.json" "$HPCSTACK_WORK/sources"
    mkdir -p "$HPCSTACK_BUILD_WITH"
    find "$HPCSTACK_BUILD_WITH" "$HPCSTACK_WORK/sources" -type f ! -name requirement.txt -exec cp {} "$answers/" \;
fi
if [ -s "$want/requirements-of-base.txt" ]; then
    hpcstack_fetch_pip requirements-of-base.txt --no-build-isolation # it is built with what the base has
fi
