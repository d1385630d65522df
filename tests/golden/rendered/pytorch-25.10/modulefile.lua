-- pytorch/25.10-r1: written by hpcstack; a release never changes, do not edit.
do
whatis("Name: pytorch")
whatis("Version: 25.10-r1")
whatis("Description: PyTorch 2.9 with DeepSpeed on NVIDIA NGC 25.10")
whatis("Base: nvcr.io/nvidia/pytorch:25.10-py3")
whatis("Stand-in: Debian 12 with torch 2.13.0+cpu, re-tagged; stands in for NVIDIA's image, is not NVIDIA's image")
help("PyTorch 2.9 with DeepSpeed on NVIDIA NGC 25.10\010\010  CUDA: 13.0.2.006\010  CUDA driver: 580.95.05\010  cuDNN: 9.14.0.64\010  NCCL: 2.27.7\010  PyTorch: 2.9.0a0+145a3a7\010  Open MPI: 4.1.7\010  UCX: 1.19.0\010  HPC-X: 2.24.1\010  rdma-core: 56.0\010  Transformer Engine: 2.8\010  GPU architectures: 7.5 8.0 8.6 9.0 10.0 12.0+PTX\010\010STAND-IN, not NVIDIA's image: Debian 12 with torch 2.13.0+cpu, re-tagged; stands in for NVIDIA's image, is not NVIDIA's image\010\010  hpcstack launch pytorch-25.10 -N 2 -- train.py\010  srun -N 2 --ntasks-per-node=1 --container-image=\"$HPCSTACK_IMAGE\" COMMAND     (with Pyxis)\010  srun -N 2 --ntasks-per-node=1 apptainer exec --nv \"$HPCSTACK_IMAGE\" COMMAND\010")
family("hpcstack_image")
if mode() == "load" and not isFile("/cluster/hpcstack/store/images/KEY/image.sqsh") then
    LmodError("the image of pytorch/25.10-r1 is not on this node: /cluster/hpcstack/store/images/KEY/image.sqsh")
end
prepend_path("PATH", "/cluster/hpcstack/store/releases/pytorch/25.10-r1/bin")
setenv("HPCSTACK_STACK", "pytorch-25.10")
setenv("HPCSTACK_RELEASE", "pytorch/25.10-r1")
setenv("HPCSTACK_IMAGE", "/cluster/hpcstack/store/images/KEY/image.sqsh")
setenv("HPCSTACK_IMAGE_SHA256", "of the image, once it is built")
end
