#%Module
# pytorch/24.11-r1: written by hpcstack; a release never changes, do not edit.
proc ModulesHelp { } {
    puts stderr "PyTorch 2.6 with DeepSpeed on NVIDIA NGC 24.11"
    puts stderr ""
    puts stderr "  CUDA: 12.6.3.001"
    puts stderr "  CUDA driver: 560.35.05"
    puts stderr "  cuDNN: 9.5.1"
    puts stderr "  PyTorch: 2.6.0a0+df5bbc0"
    puts stderr "  GPU architectures: 7.0 7.5 8.0 8.6 9.0+PTX"
    puts stderr ""
    puts stderr "STAND-IN, not NVIDIA's image: Debian 12 with torch 2.13.0+cpu, re-tagged\; stands in for NVIDIA's image, is not NVIDIA's image"
    puts stderr ""
    puts stderr "  hpcstack launch pytorch-24.11 -N 2 -- train.py"
    puts stderr "  srun -N 2 --ntasks-per-node=1 --container-image=\"\$HPCSTACK_IMAGE\" COMMAND     (with Pyxis)"
    puts stderr "  srun -N 2 --ntasks-per-node=1 apptainer exec --nv \"\$HPCSTACK_IMAGE\" COMMAND"
}
module-whatis "Name: pytorch"
module-whatis "Version: 24.11-r1"
module-whatis "Description: PyTorch 2.6 with DeepSpeed on NVIDIA NGC 24.11"
module-whatis "Base: nvcr.io/nvidia/pytorch:24.11-py3"
module-whatis "Stand-in: Debian 12 with torch 2.13.0+cpu, re-tagged\; stands in for NVIDIA's image, is not NVIDIA's image"
conflict "pytorch"
if { [module-info mode load] && ![file isfile "/cluster/hpcstack/store/images/KEY/image.sqsh"] } {
    puts stderr "the image of pytorch/24.11-r1 is not on this node: /cluster/hpcstack/store/images/KEY/image.sqsh"
    exit 1
}
prepend-path PATH "/cluster/hpcstack/store/releases/pytorch/24.11-r1/bin"
setenv HPCSTACK_STACK "pytorch-24.11"
setenv HPCSTACK_RELEASE "pytorch/24.11-r1"
setenv HPCSTACK_IMAGE "/cluster/hpcstack/store/images/KEY/image.sqsh"
setenv HPCSTACK_IMAGE_SHA256 "of the image, once it is built"
