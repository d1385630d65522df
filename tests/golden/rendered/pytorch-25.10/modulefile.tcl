#%Module
# pytorch/25.10-r1: written by hpcstack; a release never changes, do not edit.
proc ModulesHelp { } {
    puts stderr "PyTorch 2.9 with DeepSpeed on NVIDIA NGC 25.10"
    puts stderr ""
    puts stderr "  CUDA: 13.0.2.006"
    puts stderr "  CUDA driver: 580.95.05"
    puts stderr "  cuDNN: 9.14.0.64"
    puts stderr "  NCCL: 2.27.7"
    puts stderr "  PyTorch: 2.9.0a0+145a3a7"
    puts stderr "  Open MPI: 4.1.7"
    puts stderr "  UCX: 1.19.0"
    puts stderr "  HPC-X: 2.24.1"
    puts stderr "  rdma-core: 56.0"
    puts stderr "  Transformer Engine: 2.8"
    puts stderr "  GPU architectures: 7.5 8.0 8.6 9.0 10.0 12.0+PTX"
    puts stderr ""
    puts stderr "STAND-IN, not NVIDIA's image: Debian 12 with torch 2.13.0+cpu, re-tagged\; stands in for NVIDIA's image, is not NVIDIA's image"
    puts stderr ""
    puts stderr "  hpcstack launch pytorch-25.10 -N 2 -- train.py"
    puts stderr "  srun -N 2 --ntasks-per-node=1 --container-image=\"\$HPCSTACK_IMAGE\" COMMAND     (with Pyxis)"
    puts stderr "  srun -N 2 --ntasks-per-node=1 apptainer exec --nv \"\$HPCSTACK_IMAGE\" COMMAND"
}
module-whatis "Name: pytorch"
module-whatis "Version: 25.10-r1"
module-whatis "Description: PyTorch 2.9 with DeepSpeed on NVIDIA NGC 25.10"
module-whatis "Base: nvcr.io/nvidia/pytorch:25.10-py3"
module-whatis "Stand-in: Debian 12 with torch 2.13.0+cpu, re-tagged\; stands in for NVIDIA's image, is not NVIDIA's image"
conflict "pytorch"
if { [module-info mode load] && ![file isfile "/cluster/hpcstack/store/images/KEY/image.sqsh"] } {
    puts stderr "the image of pytorch/25.10-r1 is not on this node: /cluster/hpcstack/store/images/KEY/image.sqsh"
    exit 1
}
prepend-path PATH "/cluster/hpcstack/store/releases/pytorch/25.10-r1/bin"
setenv HPCSTACK_STACK "pytorch-25.10"
setenv HPCSTACK_RELEASE "pytorch/25.10-r1"
setenv HPCSTACK_IMAGE "/cluster/hpcstack/store/images/KEY/image.sqsh"
setenv HPCSTACK_IMAGE_SHA256 "of the image, once it is built"
