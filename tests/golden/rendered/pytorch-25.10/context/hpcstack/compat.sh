#!/bin/sh
# Forward compatibility: where this node's driver is older than the image's CUDA, the libcuda that the image brings must
# come first. NVIDIA's entrypoint sees to it, but Pyxis and Apptainer run no entrypoint. What is native or minor-version
# compatible is left alone, as is an image without such a library.
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

if [ -n "$hpcstack_driver" ] && [ "$hpcstack_driver" -lt "$hpcstack_first" ]; then
    for hpcstack_folder in "${_CUDA_COMPAT_PATH:-/usr/local/cuda/compat}/lib.real" \
        "${_CUDA_COMPAT_PATH:-/usr/local/cuda/compat}/lib" "${_CUDA_COMPAT_PATH:-/usr/local/cuda/compat}"; do
        if [ -e "$hpcstack_folder/libcuda.so.1" ]; then
            case :${LD_LIBRARY_PATH:-}: in
            ":$hpcstack_folder:"*) ;;
            *)
                LD_LIBRARY_PATH=$hpcstack_folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
                export LD_LIBRARY_PATH
                ;;
            esac
            break
        fi
    done
fi
unset hpcstack_driver hpcstack_line hpcstack_word hpcstack_first hpcstack_folder
case $0 in
*/hpcstack/compat.sh) exec "$@" ;;
esac
