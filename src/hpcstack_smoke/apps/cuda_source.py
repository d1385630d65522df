"""The CUDA part of the MPI program: pi by Monte Carlo on each rank's GPU.

It is compiled by nvcc, where the image has it, and linked to mpi_source.py's program.

Tested in ci/one_gpu.py.
"""

KERNEL = r"""
#include <cuda_runtime.h>
#include <stdint.h>

/* splitmix64, as on the CPU: each thread walks its own stretch of the sequence */
__device__ static double uniform(uint64_t &state) {
    uint64_t z = (state += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return (double)((z ^ (z >> 31)) >> 11) / 9007199254740992.0;
}

__global__ static void throwing(uint64_t seed, unsigned each, unsigned long long *inside) {
    unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
    uint64_t state = seed + (uint64_t)thread * 2 * each * 0x9E3779B97F4A7C15ull;
    unsigned hits = 0;
    for (unsigned n = 0; n < each; n++) {
        double x = uniform(state), y = uniform(state);
        hits += x * x + y * y <= 1.0;
    }
    atomicAdd(inside, (unsigned long long)hits);
}

/* Throw about `samples` points on GPU `local`. How many were thrown is in `thrown`, how many of
   these are inside in `inside`, the seconds in `took`. Returns 0, or CUDA's error. */
extern "C" int hpcstack_gpu_pi(long samples, int rank, int local, long *inside, long *thrown,
                               double *took) {
    int gpus = 0;
    cudaError_t error = cudaGetDeviceCount(&gpus);
    if (error != cudaSuccess || !gpus) return error ? (int)error : -1;
    if ((error = cudaSetDevice(local % gpus)) != cudaSuccess) return (int)error;
    const unsigned blocks = 1024, threads = 256;
    unsigned each = (unsigned)(samples / (blocks * threads)) + 1;
    unsigned long long *hits, found = 0;
    if ((error = cudaMalloc(&hits, sizeof *hits)) != cudaSuccess) return (int)error;
    cudaMemset(hits, 0, sizeof *hits);
    cudaEvent_t begin, end;
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    cudaEventRecord(begin);
    throwing<<<blocks, threads>>>(987654321ull * (uint64_t)(rank + 1), each, hits);
    cudaEventRecord(end);
    error = cudaEventSynchronize(end);
    if (error == cudaSuccess) error = cudaGetLastError();
    float ms = 0;
    cudaEventElapsedTime(&ms, begin, end);
    cudaMemcpy(&found, hits, sizeof found, cudaMemcpyDeviceToHost);
    cudaFree(hits);
    *inside = (long)found;
    *thrown = (long)each * blocks * threads;
    *took = ms / 1e3;
    return (int)error;
}
"""
