# shellcheck shell=bash source=/dev/null
# What a stack's pip and apt names mean inside its base: run in the imported base as an ordinary user, whose home is
# not there; a source distribution that pip has to run sees nothing but this container. Nothing of the base changes.
# /opt/hpcstack/want holds the names, /opt/hpcstack/answers takes the answers.

. /opt/hpcstack/build/lib.sh
export HOME=$HPCSTACK_WORK/home
want=/opt/hpcstack/want
answers=/opt/hpcstack/answers

hpcstack_versions() { # REPORT: what it has decided, for what is asked next
    [ -s "$1" ] || return 0
    python3 -c 'import json, sys
for entry in json.load(open(sys.argv[1]))["install"]:
    print("{name}=={version}".format(**entry["metadata"]))' "$1"
}

# The recipe's constraints, but for packages that the base has: there its own version holds.
hpcstack_constrain_more() {
    python3 -c 'import re, sys
def normalize(name): return re.sub("[-_.]+", "-", name).lower()
of_base = set(normalize(line.partition("==")[0]) for line in open(sys.argv[1]))
for line in open(sys.argv[2]):
    if normalize(re.match("[A-Za-z0-9._-]*", line).group()) not in of_base: sys.stdout.write(line)' \
        "$HPCSTACK_CONSTRAINT" "$want/pip-constraints.txt" >"$HPCSTACK_WORK/constraints.txt"
}

hpcstack_resolve_pip() {
    local more=()
    hpcstack_constrain
    if [ -s "$want/pip-constraints.txt" ]; then
        hpcstack_constrain_more
        more=(--constraint "$HPCSTACK_WORK/constraints.txt")
    fi
    hpcstack_leave_out_dead_indexes
    : >"$answers/left-out.txt"
    if [ -s "$HPCSTACK_INDEXES" ]; then sed 1d "$HPCSTACK_INDEXES" >"$answers/left-out.txt"; fi
    if ! python3 -m pip install --help | grep -e --report >/dev/null; then
        # Older than 22.2: a newer pip does the asking, and is gone afterwards.
        python3 -m pip install --quiet --target "$HPCSTACK_WORK/pip" 'pip>=23,<25'
        export PYTHONPATH=$HPCSTACK_WORK/pip${PYTHONPATH:+:$PYTHONPATH}
    fi
    if [ -s "$want/pip.txt" ]; then
        hpcstack_pip install --progress-bar off --dry-run --report "$answers/pip.json" "${more[@]}" \
            --requirement "$want/pip.txt"
        env "PIP_CONSTRAINT=$HPCSTACK_AGAINST" "PIP_BUILD_CONSTRAINT=$HPCSTACK_AGAINST" \
            python3 /opt/hpcstack/build/build_requirements.py \
            "$answers/pip.json" "$HPCSTACK_OF_BASE" "$HPCSTACK_WORK/built" "$answers/pip-build.json"
    fi
    if [ -s "$want/pip-of-base.txt" ]; then
        hpcstack_versions "$answers/pip.json" >"$HPCSTACK_WORK/decided.txt"
        hpcstack_pip install --progress-bar off --dry-run --report "$answers/pip-of-base.json" --no-build-isolation \
            "${more[@]}" --constraint "$HPCSTACK_WORK/decided.txt" --requirement "$want/pip-of-base.txt"
    fi
}

# Files of packages that are asked for and already in the base, which somebody has removed: NVIDIA's images keep the
# records of libibverbs-dev, and not its libraries. What images leave out of each package does not count.
hpcstack_missing_files() { # PACKAGE...
    local package file
    for package in "${@%%[=:/]*}"; do
        dpkg-query -L "$package" 2>/dev/null | grep -vE '^/usr/share/(doc|man|info|locale|lintian)(/|$)' |
            while IFS= read -r file; do
                if [ ! -e "$file" ] && [ ! -L "$file" ]; then printf '%s %s\n' "$package" "$file"; fi
            done || true
    done
}

hpcstack_resolve_apt() {
    local packages lists=$HPCSTACK_WORK/lists options held
    mapfile -t packages <"$want/apt.txt"
    held=$(apt-mark showhold | tr '\n' ' ')
    if [ -n "$held" ]; then printf 'the base holds: %s\n' "$held"; fi # apt does not say which it stumbles over
    hpcstack_missing_files "${packages[@]}" >"$answers/apt.missing"
    mkdir -p "$lists/partial" "$HPCSTACK_WORK/archives/partial"
    # What is to stay as it was locked, after the base's own preferences.
    {
        if [ -e /etc/apt/preferences ]; then cat /etc/apt/preferences; fi
        printf '\n\n' # records end with an empty line, and the base's last one may lack it
        cat "$want/apt-preferences"
    } >"$HPCSTACK_WORK/preferences"
    options=(-o "Dir::State::lists=$lists" -o "Dir::Cache=$HPCSTACK_WORK" -o Debug::NoLocking=1
        -o "Dir::Etc::preferences=$HPCSTACK_WORK/preferences" -o APT::Get::Always-Include-Phased-Updates=true)
    apt-get "${options[@]}" -q update
    apt-get "${options[@]}" -q install -y --no-install-recommends --allow-downgrades --simulate "${packages[@]}" \
        >"$answers/apt.simulated"
    # `--print-uris` leaves hashes out where it likes; the archive's own records have them all.
    mapfile -t packages < <(sed -nE 's/^Inst (\S+) (\[[^]]*\] )?\((\S+) .*/\1=\3/p' "$answers/apt.simulated")
    if [ "${#packages[@]}" -gt 0 ]; then
        apt-cache "${options[@]}" show "${packages[@]}" >"$answers/apt.records"
    fi
}

hpcstack_resolve_dnf() {
    hpcstack_dnf_python /opt/hpcstack/build/dnf_plan.py "$want/dnf.txt" "$want/dnf-kept.txt" "$HPCSTACK_WORK/dnf" >"$answers/dnf.json"
}

mkdir -p "$answers" "$HOME"
if [ -s /opt/hpcstack/build/conda-want.json ]; then
    hpcstack_step 1/3 "conda: what would be installed"
    hpcstack_rattler solve /opt/hpcstack/build/conda-want.json "$answers/conda.json"
fi
if [ -s "$want/apt.txt" ]; then
    hpcstack_step 2/3 "apt: what would be installed"
    hpcstack_resolve_apt
fi
if [ -s "$want/dnf.txt" ]; then
    hpcstack_step 2/3 "dnf: what would be installed"
    hpcstack_resolve_dnf
fi
if [ -s "$want/pip.txt" ] || [ -s "$want/pip-of-base.txt" ]; then
    hpcstack_step 3/3 "pip: what would be installed"
    hpcstack_resolve_pip
fi
