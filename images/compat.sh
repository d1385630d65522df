#!/bin/sh
# Forward compatibility: where this node's driver is older than the one that the image was made for, the libcuda that the
# image brings comes first, if NVIDIA's own program says that it works on this GPU (cudaCheck; not on GeForce). NVIDIA's
# entrypoint and the scripts that its bash reads see to it in the same way, but Pyxis and Apptainer run no entrypoint, and
# sh and Python read no such scripts. Where an image has no cudaCheck, only what cannot run otherwise gets that libcuda:
# the driver is of an older CUDA major. An image without such a library is left alone.
#
# cudaCheck is asked once a step: what it said is in HPCSTACK_COMPAT for all that is started from there. Nothing is
# written anywhere.
#
#   . /opt/hpcstack/compat.sh            sets LD_LIBRARY_PATH where it is needed
#   /opt/hpcstack/compat.sh COMMAND...   runs COMMAND so

hpcstack_driver=
if [ -r "${HPCSTACK_DRIVER_FILE:-/proc/driver/nvidia/version}" ]; then
    while read -r hpcstack_line; do
        case $hpcstack_line in
        *"Kernel Module"*)
            for hpcstack_word in $hpcstack_line; do
                case $hpcstack_word in
                [0-9][0-9][0-9].[0-9]*)
                    hpcstack_driver=${hpcstack_word%%.*}
                    break
                    ;;
                esac
            done
            ;;
        esac
    done <"${HPCSTACK_DRIVER_FILE:-/proc/driver/nvidia/version}"
fi

# The first driver branch of each CUDA major: docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
case ${CUDA_VERSION:-} in
11.*) hpcstack_first=450 ;;
12.*) hpcstack_first=525 ;;
13.*) hpcstack_first=580 ;;
*) hpcstack_first=0 ;;
esac

hpcstack_image=${CUDA_DRIVER_VERSION:-} hpcstack_image=${hpcstack_image%%.*} # the driver that the image was made for
case $hpcstack_image in '' | *[!0-9]*) hpcstack_image=$hpcstack_first ;; esac

hpcstack_compat_works() { # FOLDER of a libcuda
    if ! command -v cudaCheck >/dev/null 2>&1 || ! command -v timeout >/dev/null 2>&1; then
        [ "$hpcstack_driver" -lt "$hpcstack_first" ]
        return
    fi
    hpcstack_asked="$hpcstack_driver ${SLURM_JOB_ID:-}.${SLURM_STEP_ID:-}.${SLURM_NODEID:-} $1"
    case ${HPCSTACK_COMPAT:-} in
    "$hpcstack_asked "*) ;;
    *)
        HPCSTACK_COMPAT="$hpcstack_asked no"
        if LD_LIBRARY_PATH=$1${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} \
            timeout -s KILL "${_CUDA_COMPAT_TIMEOUT:-90}" cudaCheck >/dev/null 2>&1; then
            HPCSTACK_COMPAT="$hpcstack_asked yes"
        fi
        export HPCSTACK_COMPAT
        ;;
    esac
    [ "$HPCSTACK_COMPAT" = "$hpcstack_asked yes" ]
}

if [ -n "$hpcstack_driver" ] && [ "$hpcstack_driver" -lt "$hpcstack_image" ]; then
    for hpcstack_folder in "${_CUDA_COMPAT_PATH:-/usr/local/cuda/compat}/lib.real" \
        "${_CUDA_COMPAT_PATH:-/usr/local/cuda/compat}/lib" "${_CUDA_COMPAT_PATH:-/usr/local/cuda/compat}"; do
        if [ -e "$hpcstack_folder/libcuda.so.1" ]; then
            case :${LD_LIBRARY_PATH:-}: in
            ":$hpcstack_folder:"*) ;;
            *)
                if hpcstack_compat_works "$hpcstack_folder"; then
                    LD_LIBRARY_PATH=$hpcstack_folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
                    export LD_LIBRARY_PATH
                fi
                ;;
            esac
            break
        fi
    done
fi
unset -f hpcstack_compat_works
unset hpcstack_image hpcstack_asked
unset hpcstack_driver hpcstack_line hpcstack_word hpcstack_first hpcstack_folder
case $0 in
*/hpcstack/compat.sh) exec "$@" ;;
esac
