#!/usr/bin/env bash
# pytorch-25.10: nvcr.io/nvidia/pytorch:25.10-py3, written by hpcstack.
# ./enroot.sh [OUTPUT.sqsh]   builds the image with Enroot, in the folder that holds context/
set -euo pipefail

output=${1:-pytorch-25.10.sqsh}
name=hpcstack-pytorch-25.10-$$
work=$(mktemp -d)
trap 'enroot remove --force "$name" >/dev/null 2>&1 || true; rm -rf "$work"' EXIT
base=${HPCSTACK_BASE:-docker://nvcr.io#nvidia/pytorch:sha256:82e38fb200761f538daab0b1852f6811f882b891bb7a1db40fed7762aba33591} # a mirror: docker://MIRROR#nvidia/pytorch:sha256:82e38fb200761f538daab0b1852f6811f882b891bb7a1db40fed7762aba33591
here=$(cd "$(dirname "$0")" && pwd)

enroot import --arch x86_64 --output "$work/base.sqsh" "$base"
enroot create --name "$name" "$work/base.sqsh"
rm "$work/base.sqsh"

cat >"$work/build.sh" <<'HPCSTACK_BUILD'
mkdir -p /opt/hpcstack
cp -r /hpcstack-context/. /opt/hpcstack/
. /opt/hpcstack/build/lib.sh

hpcstack_step 1/3 'apt: infiniband-diags'
hpcstack_guard
apt-get -q update
DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends infiniband-diags
hpcstack_clean_apt
hpcstack_guard_check

hpcstack_step 2/3 'pip: deepspeed==0.19.8'
hpcstack_guard
python3 -m pip install --no-cache-dir --no-compile --constraint "$HPCSTACK_CONSTRAINT" deepspeed==0.19.8
hpcstack_guard_check

hpcstack_step 3/3 finish
hpcstack_finish
HPCSTACK_BUILD

# The base's entrypoint is not for building: bash is the container's own command here.
printf 'exec "$@"\n' >"$work/rc"
NVIDIA_VISIBLE_DEVICES=void enroot start --root --rw --rc "$work/rc" \
    --mount "$here/context/hpcstack:/hpcstack-context:none:x-create=dir,bind,ro" \
    --mount "$work/build.sh:/hpcstack-build.sh:none:x-create=file,bind,ro" \
    --env NVIDIA_VISIBLE_DEVICES ${HPCSTACK_LENT:+--mount "$HPCSTACK_LENT:/mnt"} \
    "$name" /bin/bash /hpcstack-build.sh

enroot export --output "$output.part" "$name"
mv "$output.part" "$output"
