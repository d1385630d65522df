# shellcheck shell=bash
# What the steps of an hpcstack build share. Sourced inside the base, by bash, as root of the image.

set -Eeuo pipefail
umask 022

# NVIDIA's images name scripts that each bash and sh reads when it starts. They are for the node that a job runs on: on a
# node with a GPU they take compat/lib out of the image and write the node's name into it.
unset BASH_ENV ENV

# In the image, not in /tmp: Apptainer binds the host's /tmp, which other users and builds share.
HPCSTACK_WORK=/opt/hpcstack/scratch
HPCSTACK_CONSTRAINT=$HPCSTACK_WORK/constraint.txt
export PIP_BREAK_SYSTEM_PACKAGES=1 PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
# An extension that is not built now is built when it is first used, on the machine that has the GPU.
export DS_BUILD_OPS=${DS_BUILD_OPS:-0}
# Two builds give the same bytes: what a build makes gets this time, Python's compiler does not write times, and an import
# leaves nothing behind (it would write the time of the module that it read).
export SOURCE_DATE_EPOCH=1704067200 PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1
export TMPDIR=$HPCSTACK_WORK/tmp
mkdir -p "$TMPDIR"

# What the site lends for the build (mirrors, proxy, CA bundle): bound at /mnt, never in the image.
if [ -r /mnt/hpcstack-site.sh ]; then
    . /mnt/hpcstack-site.sh
fi
# Where one user id is all there is, apt cannot become its own user.
if [ "${HPCSTACK_ONE_ID:-}" = yes ]; then
    export APT_CONFIG=${APT_CONFIG:-$HPCSTACK_WORK/apt.conf}
    printf 'APT::Sandbox::User "root";\n' >>"$APT_CONFIG"
fi

hpcstack_step() { # N/M TITLE
    export HPCSTACK_STEP="$1 $2" # the scripts of a step name it, too
    printf '== hpcstack step %s\n' "$HPCSTACK_STEP"
}

hpcstack_failed() { # STATUS COMMAND
    if [[ $- != *e* ]]; then return 0; fi # the step looks at it itself: set +e
    printf '== hpcstack failed in step %s\n== hpcstack command %s\n== hpcstack status %s\n' \
        "${HPCSTACK_STEP:-?}" "${2//$'\n'/ }" "$1"
    trap - ERR
    exit "$1"
}
trap 'hpcstack_failed "$?" "$BASH_COMMAND"' ERR

# Which packages NVIDIA built or chose for the base: a step that replaces one of them breaks the image.
. /opt/hpcstack/build/guard.sh

# NAME=VERSION of what is installed; what was removed and left its settings is not.
hpcstack_dpkg() {
    dpkg-query -W -f '${db:Status-Abbrev}${Package}=${Version}\n' | sed -n 's/^[ih]i *//p'
}

# The same of rpm's.
hpcstack_rpm() {
    rpm -qa --queryformat '%{NAME}=%{EVR}\n'
}

# NAME==VERSION of Python's packages. Python's own list takes a fifth of the time of pip's, which is asked where that has
# failed. A list that cannot be had must fail the step: an empty one would guard nothing. A package whose METADATA cannot
# be read stands there by its folder's name, and $1 gets a line that says so.
hpcstack_python_packages() { # [FILE]
    command -v python3 >/dev/null || return 0
    if python3 - "${1:-/dev/null}" <<'PYTHON'; then return 0; fi
import email
import importlib.metadata
import os
import re
import sys

found = {}
with open(sys.argv[1], "w") as unread:
    for one in importlib.metadata.distributions():
        where = str(getattr(one, "_path", "?"))
        name = version = ""
        try:
            name, version = one.metadata["Name"], one.version
        except Exception:
            try:  # what is not UTF-8 is in the other fields
                with open(os.path.join(where, "METADATA"), encoding="latin-1") as file:
                    fields = email.message_from_file(file)
                name, version = fields["Name"], fields["Version"]
            except Exception:
                pass
        if not (name and version):
            stem = re.sub(r"\.(dist|egg)-info$", "", os.path.basename(where))
            name, _, version = stem.partition("-")
            version = re.sub(r"-py\d.*$", "", version) or "unknown"
            unread.write(f"{where}: its METADATA cannot be read\n")
        if name:
            found.setdefault(re.sub("[-_.]+", "-", name).lower(), f"{name}=={version}".replace("\n", " "))
print("\n".join(found.values()))
PYTHON
    python3 -m pip list --format=freeze
}

# grep, for which no such line is no failure.
hpcstack_grep() { # ARGUMENTS
    grep "$@" || [ $? -eq 1 ]
}

hpcstack_packages() {
    local listed
    listed=$(hpcstack_python_packages /dev/null) || return 1
    printf '%s\n' "$listed" | hpcstack_grep -iE "$HPCSTACK_GUARDED_PIP" | sed 's/^/pip /'
    if command -v dpkg-query >/dev/null; then
        listed=$(hpcstack_dpkg) || return 1
        printf '%s\n' "$listed" | hpcstack_grep -E "$HPCSTACK_GUARDED_APT" | sed 's/^/apt /'
    fi
    if command -v rpm >/dev/null; then
        listed=$(hpcstack_rpm) || return 1
        printf '%s\n' "$listed" | hpcstack_grep -E "$HPCSTACK_GUARDED_APT" | sed 's/^/rpm /'
    fi
}

# The image's own tree. What is mounted into it for the build is the machine's: an engine may bind /tmp or a home. Where find
# cannot look, the log says so: a builder with one user id does not see all that others own.
hpcstack_find() { # EXPRESSION of find
    local point mounted=()
    while read -r _ _ _ _ point _; do
        [ "$point" = / ] || mounted+=(-path "$point" -o)
    done </proc/self/mountinfo
    find / -xdev \( "${mounted[@]}" -path /proc \) -prune -o "$@" || hpcstack_not_all_seen /
}

hpcstack_not_all_seen() { # PLACE
    printf 'not all of %s could be looked at: see what find says above\n' "$1" >&2
}

# "file PATH SHA256" of what NVIDIA's packages are made of. A file whose size, times and number have not changed is not
# read again.
hpcstack_libraries() {
    local found=$HPCSTACK_WORK/files known=/opt/hpcstack/build/.known
    touch "$known"
    hpcstack_find ! -path '/opt/hpcstack/*' -type f \( "${HPCSTACK_GUARDED_FILES[@]}" \) -printf '%s:%i:%T@:%C@\t%p\n' |
        LC_ALL=C sort >"$found"
    hpcstack_grep -vxFf <(cut -f1,2 "$known") "$found" | cut -f2 | tr '\n' '\0' |
        xargs -0 -r -P 4 -n 4 sha256sum >"$found.sums"
    awk -F '\t' -v sums="$found.sums" '
        BEGIN { while ((getline line < sums) > 0) { sum[substr(line, 67)] = substr(line, 1, 64) } }
        FILENAME == ARGV[1] { known[$1 "\t" $2] = $3; next }
        { print $0 "\t" ($0 in known ? known[$0] : sum[$2]) }' "$known" "$found" >"$found.now"
    mv "$found.now" "$known"
    awk -F '\t' '{ print "file " $2 " " $3 }' "$known"
}

# What the last step left is what this one finds, where each is a layer: it is looked at once.
HPCSTACK_LEFT=/opt/hpcstack/build/.guarded

hpcstack_guard() {
    hpcstack_leave_out_dead_indexes
    if [ "${HPCSTACK_LAYERS:-}" = yes ] && [ -s "$HPCSTACK_LEFT" ]; then
        cp "$HPCSTACK_LEFT" "$HPCSTACK_WORK/unsorted"
    else
        hpcstack_packages >"$HPCSTACK_WORK/unsorted" # not `a && b`: there a failure is looked over
        if [ "${HPCSTACK_SEES_FILES:-}" != yes ]; then hpcstack_libraries >>"$HPCSTACK_WORK/unsorted"; fi
    fi
    hpcstack_grep -vE "$HPCSTACK_ALLOWED" "$HPCSTACK_WORK/unsorted" | sort >"$HPCSTACK_WORK/before"
    sed -n 's/^pip //p' "$HPCSTACK_WORK/before" >"$HPCSTACK_CONSTRAINT"
}

# Where each step is a layer, its engine sees which files one has changed (HPCSTACK_SEES_FILES), and has those compared
# (hpcstack_guard_sums): the libraries of an image of NVIDIA's are 10 GB, and nearly no step touches one.
hpcstack_guard_check() {
    hpcstack_packages >"$HPCSTACK_WORK/unsorted"
    if [ "${HPCSTACK_SEES_FILES:-}" != yes ]; then hpcstack_libraries >>"$HPCSTACK_WORK/unsorted"; fi
    cp "$HPCSTACK_WORK/unsorted" "$HPCSTACK_LEFT"
    hpcstack_grep -vE "$HPCSTACK_ALLOWED" "$HPCSTACK_WORK/unsorted" | sort >"$HPCSTACK_WORK/after"
    hpcstack_lost
}

# "file PATH SHA256" of the libraries at the PLACES, files and folders with a NUL behind each.
hpcstack_guard_sums() { # PLACES
    local place
    while IFS= read -r -d '' place; do
        if [ ! -e "$place" ]; then continue; fi # the step has removed it
        find "$place" -xdev ! -path '/opt/hpcstack/*' -type f \( "${HPCSTACK_GUARDED_FILES[@]}" \) -print0 ||
            hpcstack_not_all_seen "$place"
    done <"$1" | xargs -0 -r -P 4 -n 4 sha256sum | sed -E 's/^\\?([0-9a-f]{64})  (.*)$/file \2 \1/' | sort
}

# Fails where something of `before` is not in `after`.
hpcstack_lost() {
    local lost
    lost=$(comm -23 "$HPCSTACK_WORK/before" "$HPCSTACK_WORK/after")
    if [ -n "$lost" ]; then
        printf '%s\n' "$lost" | sed 's/^/== hpcstack lost /'
        printf 'this step replaced or removed what the base brings:\n%s\n' "$lost"
        printf 'now there is:\n%s\n' "$(comm -13 "$HPCSTACK_WORK/before" "$HPCSTACK_WORK/after")"
        return 1
    fi
}

# What the base brings of packages that pip must not replace, for --constraint. No file is read for it.
hpcstack_constrain() {
    hpcstack_packages | hpcstack_grep -vE "$HPCSTACK_ALLOWED" | sed -n 's/^pip //p' | sort >"$HPCSTACK_CONSTRAINT"
}

# What extensions are compiled against must be the base's, and no index has NVIDIA's torch. Build environments, which see
# nothing of the base, are offered wheels of the base's own names and versions. Such a wheel holds one line: where the base's
# packages are.
HPCSTACK_OF_BASE=$HPCSTACK_WORK/of-base
HPCSTACK_AGAINST=$HPCSTACK_WORK/built-against.txt

hpcstack_offer_base_to_builds() {
    mkdir -p "$HPCSTACK_OF_BASE"
    hpcstack_grep -iE "$HPCSTACK_BUILT_AGAINST" "$HPCSTACK_CONSTRAINT" >"$HPCSTACK_AGAINST"
    if [ ! -s "$HPCSTACK_AGAINST" ]; then return 0; fi
    python3 - "$HPCSTACK_AGAINST" "$HPCSTACK_OF_BASE" <<'PYTHON'
import os
import re
import sys
import zipfile

constraints, folder = sys.argv[1:]
of_base = [path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages") and os.path.isdir(path)]
for line in open(constraints):
    name, _, version = line.strip().partition("==")
    stem = "{}-{}".format(re.sub("[-_.]+", "_", name).lower(), version.replace("-", "_"))
    with zipfile.ZipFile(os.path.join(folder, stem + "-py3-none-any.whl"), "w") as wheel:
        wheel.writestr("hpcstack_base_{}.pth".format(stem.split("-")[0]), "".join(path + "\n" for path in of_base))
        about = stem + ".dist-info/"
        wheel.writestr(about + "METADATA", "Metadata-Version: 2.1\nName: {}\nVersion: {}\n".format(name, version))
        wheel.writestr(about + "WHEEL", "Wheel-Version: 1.0\nGenerator: hpcstack\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(about + "RECORD", "")
PYTHON
}

# pip, where it decides on versions. The base's own constraints are said on the command line: in the environment they
# would hold for what source distributions are built with, too, and a base that pins packaging==23.2 builds few of them.
hpcstack_pip() { # ARGUMENTS
    local file words=() how
    for file in ${PIP_CONSTRAINT:-}; do words+=(--constraint "$file"); done
    hpcstack_offer_base_to_builds
    case " $* " in
    *" --no-build-isolation "*) how=(env -u PIP_CONSTRAINT -u PIP_BUILD_CONSTRAINT) ;; # pip 25.3 takes both for a mistake
    *)
        # Only this is to hold there: an extension that is compiled against another torch than the base's is broken, and
        # nothing would show it before it is imported.
        how=(env "PIP_CONSTRAINT=$HPCSTACK_AGAINST" "PIP_BUILD_CONSTRAINT=$HPCSTACK_AGAINST")
        words+=(--find-links "$HPCSTACK_OF_BASE")
        ;;
    esac
    "${how[@]}" python3 -m pip "$@" "${words[@]}" --constraint "$HPCSTACK_CONSTRAINT"
}

# What source distributions are built with, exactly as it was locked. Several versions of one project may be wanted, and a
# file of requirements can name one.
HPCSTACK_BUILD_WITH=$HPCSTACK_WORK/build-with

hpcstack_fetch_build_requirements() { # FILE...
    local file
    mkdir -p "$HPCSTACK_BUILD_WITH"
    for file in "$@"; do
        env -u PIP_CONSTRAINT -u PIP_BUILD_CONSTRAINT python3 -m pip download --quiet --no-deps --only-binary :all: \
            --require-hashes --requirement "$file" --dest "$HPCSTACK_BUILD_WITH"
    done
}

# pip on locked source distributions, one after another. pip hands on to build environments where it looks for files: that is
# the folder of this one, what builds them as it was locked, and what the base offers.
hpcstack_pip_from_source() { # LIST VERB ARGUMENTS of pip
    local list=$1 folder sources=$HPCSTACK_WORK/sources
    shift
    hpcstack_constrain
    hpcstack_offer_base_to_builds
    mkdir -p "$HPCSTACK_BUILD_WITH"
    python3 /opt/hpcstack/build/fetch_sources.py "$list" "$sources"
    for folder in "$sources"/*/; do
        env -u PIP_CONSTRAINT -u PIP_BUILD_CONSTRAINT -u PIP_INDEX_URL -u PIP_EXTRA_INDEX_URL \
            PIP_NO_INDEX=1 "PIP_FIND_LINKS=$HPCSTACK_BUILD_WITH $HPCSTACK_OF_BASE $folder" \
            python3 -m pip "$@" --no-deps --require-hashes --requirement "${folder}requirement.txt"
    done
}

# Extra indexes that the base names for pip, and that nobody serves any more (NVIDIA's images up to 24.x name
# pypi.ngc.nvidia.com): pip would ask each of them for every project, several times. They are asked once a step, for three
# seconds, and left out of it. Those of the site are never left out: who names one wants it.
HPCSTACK_INDEXES=/opt/hpcstack/scratch/indexes # of this step: the URLs that answer, then what was left out, and why

# Whether a packet can leave this container. Every container has the loop device in its tables.
hpcstack_has_network() { # TABLES: /proc/net
    local tables=$1
    if [ "$(wc -l <"$tables/route")" -gt 1 ]; then return 0; fi
    awk '$1 ~ /^0+$/ && $2 == "00" && $NF != "lo" { found = 1 } END { exit !found }' "$tables/ipv6_route" 2>/dev/null
}

hpcstack_leave_out_dead_indexes() {
    if [ -n "${HPCSTACK_SITE_INDEXES:-}" ] || [ -d /mnt/packages ] || ! command -v python3 >/dev/null; then return 0; fi
    if [ "${HPCSTACK_INDEXES_OF-nothing}" = "${HPCSTACK_STEP:-}" ]; then return 0; fi # this step knows
    export HPCSTACK_INDEXES_OF=${HPCSTACK_STEP:-}
    if ! hpcstack_has_network /proc/net; then return 0; fi # nobody answers
    python3 /opt/hpcstack/build/live_indexes.py >"$HPCSTACK_INDEXES" || : >"$HPCSTACK_INDEXES"
    if [ ! -s "$HPCSTACK_INDEXES" ]; then return 0; fi
    sed -n '2,$s/^/the base names an extra index that does not answer; it is left out: /p' "$HPCSTACK_INDEXES"
    # A blank overrides what the base's files say, and names none.
    PIP_EXTRA_INDEX_URL=$(head -n 1 "$HPCSTACK_INDEXES")
    export PIP_EXTRA_INDEX_URL
}

# git at one commit, with nothing of its history; submodules where they are asked for.
hpcstack_source() { # NAME URL COMMIT SUBMODULES
    local folder=$HPCSTACK_WORK/source/$1
    if ! command -v git >/dev/null; then
        printf 'there is no git in the base: add git to packages.apt\n'
        return 1
    fi
    git init -q "$folder"
    (
        cd "$folder"
        export GIT_TERMINAL_PROMPT=0
        git remote add origin "$2"
        # Some servers give single commits to nobody: then all of it is fetched.
        git fetch -q --depth 1 origin "$3" || git fetch -q origin
        git -c advice.detachedHead=false checkout -q "$3"
        [ "$(git rev-parse HEAD)" = "$3" ]
        if [ "$4" = yes ]; then git submodule -q update --init --recursive --depth 1; fi
    )
}

# Conda's solver and installer, for the time of the build: rattler, which pixi is made of.
HPCSTACK_RATTLER='py-rattler==0.28.0
    --hash=sha256:4f4ab1d34d5394e7ce130a86e59009c95ace4f5757d9c3af04de1351bcea47eb
    --hash=sha256:61b24202374188e72130f1b3dc63b455befaafc3e49e5481a38b6a6c8828c1e0' # its wheels for x86_64 and aarch64

hpcstack_rattler() { # ARGUMENTS of conda.py
    if [ ! -d "$HPCSTACK_WORK/rattler" ]; then
        if ! command -v python3 >/dev/null || ! python3 -c 'import pip' 2>/dev/null; then
            printf 'conda packages need a base with python3 and pip\n'
            return 1
        fi
        printf '%s' "$HPCSTACK_RATTLER" | tr '\n' ' ' >"$HPCSTACK_WORK/rattler.txt"
        hpcstack_leave_out_dead_indexes
        env -u PIP_CONSTRAINT python3 -m pip install --quiet --no-cache-dir --no-deps --only-binary :all: --require-hashes \
            --target "$HPCSTACK_WORK/rattler" --requirement "$HPCSTACK_WORK/rattler.txt"
    fi
    mkdir -p "$HPCSTACK_WORK/home" # its caches go with the scratch folder
    HOME=$HPCSTACK_WORK/home XDG_CACHE_HOME=$HPCSTACK_WORK/home PYTHONPATH=$HPCSTACK_WORK/rattler \
        python3 /opt/hpcstack/build/conda.py "$@"
}

hpcstack_conda() { # PREFIX: what the specs mean now
    hpcstack_rattler solve /opt/hpcstack/build/conda-want.json "$HPCSTACK_WORK/conda.json"
    hpcstack_rattler install "$HPCSTACK_WORK/conda.json" "$1"
}

hpcstack_conda_locked() { # PREFIX: exactly what was locked
    hpcstack_rattler install /opt/hpcstack/build/conda.json "$1"
}

# The lists of the archives; without a network the packages of a bundle lie at /mnt/packages, and pip finds them there.
hpcstack_apt_update() {
    if [ ! -d /mnt/packages ]; then apt-get -q update; fi
}
if [ -d /mnt/packages ]; then
    export PIP_NO_INDEX=1 PIP_FIND_LINKS=/mnt/packages
    unset PIP_INDEX_URL PIP_EXTRA_INDEX_URL
fi

# Exactly what was locked: each file's sha256 is looked at before anything is unpacked.
hpcstack_apt_locked() { # NAME=VERSION...
    local archives=$HPCSTACK_WORK/archives file sum options
    options=(-q install -y --no-install-recommends --allow-downgrades -o "Dir::Cache::archives=$archives")
    mkdir -p "$archives/partial"
    if [ -d /mnt/packages ]; then
        cp /mnt/packages/*.deb "$archives/"
        set -- "$archives"/*.deb
    else
        apt-get "${options[@]}" --download-only "$@"
    fi
    for file in "$archives"/*.deb; do
        [ -e "$file" ] || continue
        sum=$(sha256sum "$file")
        if ! grep -qx "${sum%% *}" /opt/hpcstack/build/apt.sha256; then
            printf 'this file is not the one that was locked: %s\n' "$file"
            return 1
        fi
    done
    DEBIAN_FRONTEND=noninteractive apt-get "${options[@]}" "$@"
}

# The Python that has dnf's own modules: the distribution's, which is not the first on PATH everywhere.
hpcstack_dnf_python() { # ARGUMENTS of python
    local python
    for python in /usr/libexec/platform-python /usr/bin/python3 python3; do
        if command -v "$python" >/dev/null && "$python" -c 'import dnf' 2>/dev/null; then
            "$python" "$@"
            return
        fi
    done
    printf 'there is no dnf 4 in the base: packages.dnf is for images such as those of Rocky Linux\n' >&2
    return 1
}

HPCSTACK_DNF=(-y -q --setopt=install_weak_deps=False "--setopt=cachedir=$HPCSTACK_WORK/dnf" --setopt=keepcache=False)
if [ -n "${SSL_CERT_FILE:-}" ]; then HPCSTACK_DNF+=("--setopt=sslcacert=$SSL_CERT_FILE"); fi

hpcstack_dnf() { # NAME...
    dnf "${HPCSTACK_DNF[@]}" install "$@"
}

# Exactly what was locked: each file's hash is looked at before anything is unpacked.
hpcstack_dnf_locked() { # NAME-VERSION-RELEASE.ARCH...
    local archives=$HPCSTACK_WORK/archives file sum
    mkdir -p "$archives"
    if [ -d /mnt/packages ]; then
        cp /mnt/packages/*.rpm "$archives/"
    else
        dnf "${HPCSTACK_DNF[@]}" --downloadonly "--downloaddir=$archives" install "$@"
    fi
    for file in "$archives"/*.rpm; do
        [ -e "$file" ] || continue
        sum=$(sha256sum "$file")
        if ! grep -qx "${sum%% *}" /opt/hpcstack/build/dnf.sha256; then
            printf 'this file is not the one that was locked: %s\n' "$file"
            return 1
        fi
    done
    dnf "${HPCSTACK_DNF[@]}" --disablerepo='*' install "$archives"/*.rpm
}

hpcstack_clean_dnf() {
    rm -rf /var/cache/dnf /var/log/dnf*.log /var/log/hawkey.log /var/lib/dnf/history.sqlite*
}

hpcstack_clean_apt() {
    apt-get -q clean
    rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/log/apt /var/log/dpkg.log /var/log/alternatives.log
}

# What COMMAND lists becomes the list NAME, sorted. asked.txt says of each PROGRAM that is there whether it has listed or
# failed: an empty list means nothing by itself.
hpcstack_list() { # NAME PROGRAM COMMAND...
    local lists=/opt/hpcstack/packages name=$1 program=$2
    shift 2
    : >"$lists/$name.txt"
    if ! command -v "$program" >/dev/null; then return 0; fi
    if "$@" >"$HPCSTACK_WORK/list"; then
        sort "$HPCSTACK_WORK/list" >"$lists/$name.txt"
        printf '%s listed\n' "$program" >>"$lists/asked.txt"
    else
        printf '%s failed\n' "$program" >>"$lists/asked.txt"
    fi
}

# The metadata that Enroot, Pyxis and Apptainer read, the package lists, and nothing of the build left behind.
hpcstack_finish() {
    cp /opt/hpcstack/etc/rc /opt/hpcstack/etc/environment /etc/
    if [ ! -e /opt/hpcstack/etc/adopted ]; then # of an image that was taken over these are somebody's own
        cp /opt/hpcstack/etc/fstab /etc/
        : >/etc/rc.local
        rm -rf /root/.cache
    fi
    mkdir -p /.singularity.d/libs
    cp -r /opt/hpcstack/etc/singularity/. /.singularity.d/
    ln -sfn .singularity.d/runscript /singularity
    ln -sfn .singularity.d/env/90-environment.sh /environment
    if [ -d /etc/profile.d ]; then cp /opt/hpcstack/etc/profile.sh /etc/profile.d/hpcstack.sh; fi
    chmod 755 /opt/hpcstack/compat.sh
    mkdir -p /opt/hpcstack/packages
    # Each list is there, and empty where the image cannot make it: then hpcstack reads the image's files itself, and says
    # what it cannot read (store/package_lists.py).
    local lists=/opt/hpcstack/packages
    : >$lists/unlisted.txt
    : >$lists/asked.txt
    hpcstack_list apt dpkg-query hpcstack_dpkg
    hpcstack_list pip python3 hpcstack_python_packages $lists/unlisted.txt
    hpcstack_list rpm rpm hpcstack_rpm
    # A walk through an image takes seconds: an engine that sees all names says where there is no conda.
    { [ "${HPCSTACK_NO_CONDA:-}" = yes ] || hpcstack_find -path '*/conda-meta/*-*-*.json' -printf '%f\n'; } |
        sed -E 's/\.json$//; s/-([^-]*)-([^-]*)$/=\1=\2/' | sort >/opt/hpcstack/packages/conda.txt
    python3 -m compileall -q /opt/hpcstack/smoke >/dev/null 2>&1 || true
    rm -rf "$HPCSTACK_WORK" /opt/hpcstack/build/.known "$HPCSTACK_LEFT"
    # Where this link stays, NVIDIA's libcuda comes before that of a node under Apptainer, on every node, and fails where
    # the node's is newer. The library itself stays beside it, and compat.sh finds it there where it is needed.
    hpcstack_compat=${_CUDA_COMPAT_PATH:-/usr/local/cuda/compat}
    if [ -L "$hpcstack_compat/lib" ] && [ -d "$hpcstack_compat/lib.real" ]; then rm -f "$hpcstack_compat/lib"; fi
    # What only says when and where the build ran.
    rm -f /var/cache/ldconfig/aux-cache /var/cache/debconf/*-old /var/lib/dpkg/*-old /etc/*- /root/.bash_history
    # Pyxis and Enroot refuse an image with device nodes. Where /dev is mounted it is the machine's own: hands off.
    if [ "$(stat -c %d /dev)" = "$(stat -c %d /)" ]; then
        find /dev -mindepth 1 -xdev -type b,c -delete || echo 'device nodes stay in the image: Pyxis and Enroot refuse it'
    fi
    # An engine with layers does it in each of them.
    [ "${HPCSTACK_LAYERS:-}" != yes ] || return 0
    # lib.sh came into the image when the build began.
    hpcstack_find \( -newer /opt/hpcstack/build/lib.sh -o -path '/opt/hpcstack*' \) -print0 |
        xargs -0 -r touch -h -d "@$SOURCE_DATE_EPOCH" || echo 'some times stay: another build gives other bytes'
}
