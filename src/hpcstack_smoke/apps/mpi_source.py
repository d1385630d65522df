"""The MPI program that is compiled inside the image, in C99 and MPI-3.

CUDA's driver is opened by dlopen where there is one. Rank 0 prints JSON objects, one a line: the
world, how many values of point-to-point messages and collectives are wrong, and pi as courses
compute it (by Monte Carlo, and by the midpoint rule of 4 / (1 + x^2)) on 1, 2, 4, ... ranks; then,
where they were asked for, pi of the GPUs, and whether a GPU's memory was sent right.

Tested in tests/integration/test_smoke.py.
"""

SOURCE = r"""
#include <dlfcn.h>
#include <math.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef HPCSTACK_CUDA
int hpcstack_gpu_pi(long samples, int rank, int local, long *inside, long *thrown, double *took);
#endif

static uint64_t state;
static double uniform(void) { /* splitmix64: the same on every machine */
    uint64_t z = (state += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return (double)((z ^ (z >> 31)) >> 11) / 9007199254740992.0;
}

static double monte_carlo(MPI_Comm comm, long samples) {
    int rank, size;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    long mine = samples / size, inside = 0, all = 0;
    state = 12345ull + (uint64_t)rank * 1000003ull;
    for (long n = 0; n < mine; n++) {
        double x = uniform(), y = uniform();
        inside += x * x + y * y <= 1.0;
    }
    MPI_Allreduce(&inside, &all, 1, MPI_LONG, MPI_SUM, comm);
    return 4.0 * (double)all / (double)(mine * size);
}

static double midpoint(MPI_Comm comm, long steps) {
    int rank, size;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    double width = 1.0 / (double)steps, sum = 0, all = 0;
    for (long n = rank; n < steps; n += size) {
        double x = ((double)n + 0.5) * width;
        sum += 4.0 / (1.0 + x * x);
    }
    sum *= width;
    MPI_Allreduce(&sum, &all, 1, MPI_DOUBLE, MPI_SUM, comm);
    return all;
}

static int exact(int rank, int size) { /* how many of nine were wrong, here */
    int wrong = 0, mine = rank + 1, got = 0, *every = malloc(sizeof(int) * (size_t)size), *sent = malloc(sizeof(int) * (size_t)size);
    int after = (rank + 1) % size, before = (rank + size - 1) % size;
    MPI_Sendrecv(&mine, 1, MPI_INT, after, 7, &got, 1, MPI_INT, before, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    wrong += got != before + 1;
    MPI_Allreduce(&mine, &got, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    wrong += got != size * (size + 1) / 2;
    MPI_Allgather(&mine, 1, MPI_INT, every, 1, MPI_INT, MPI_COMM_WORLD);
    for (int n = 0; n < size; n++) wrong += every[n] != n + 1;
    got = rank == size - 1 ? 4711 : 0;
    MPI_Bcast(&got, 1, MPI_INT, size - 1, MPI_COMM_WORLD);
    wrong += got != 4711;
    got = 0;
    MPI_Reduce(&mine, &got, 1, MPI_INT, MPI_MAX, 0, MPI_COMM_WORLD);
    wrong += rank == 0 && got != size;
    for (int n = 0; n < size; n++) sent[n] = 1000 * rank + n;
    MPI_Alltoall(sent, 1, MPI_INT, every, 1, MPI_INT, MPI_COMM_WORLD);
    for (int n = 0; n < size; n++) wrong += every[n] != 1000 * n + rank;
    MPI_Scatter(sent, 1, MPI_INT, &got, 1, MPI_INT, 0, MPI_COMM_WORLD);
    wrong += got != rank;
    MPI_Gather(&mine, 1, MPI_INT, every, 1, MPI_INT, 0, MPI_COMM_WORLD);
    for (int n = 0; rank == 0 && n < size; n++) wrong += every[n] != n + 1;
    MPI_Scan(&mine, &got, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    wrong += got != (rank + 1) * (rank + 2) / 2;
    free(every);
    free(sent);
    return wrong;
}

/* A GPU's memory handed to MPI as it is. 0: right, 1: wrong, 2: no GPU or driver here. */
static int device(int rank, int size, int local) {
    typedef int (*one)(unsigned);
    typedef int (*two)(int *, int);
    typedef int (*three)(void **, unsigned, int);
    typedef int (*alloc_t)(uint64_t *, size_t);
    typedef int (*up_t)(uint64_t, const void *, size_t);
    typedef int (*down_t)(void *, uint64_t, size_t);
    typedef int (*count_t)(int *);
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    one init = cuda ? (one)dlsym(cuda, "cuInit") : 0;
    count_t count = cuda ? (count_t)dlsym(cuda, "cuDeviceGetCount") : 0;
    two get = cuda ? (two)dlsym(cuda, "cuDeviceGet") : 0;
    three create = cuda ? (three)dlsym(cuda, "cuCtxCreate_v2") : 0;
    alloc_t alloc = cuda ? (alloc_t)dlsym(cuda, "cuMemAlloc_v2") : 0;
    up_t up = cuda ? (up_t)dlsym(cuda, "cuMemcpyHtoD_v2") : 0;
    down_t down = cuda ? (down_t)dlsym(cuda, "cuMemcpyDtoH_v2") : 0;
    int gpus = 0, which;
    void *context;
    uint64_t sent, got;
    int *host = malloc(1 << 20);
    int ready = 0, all = 0;
    if (cuda && init && count && get && create && alloc && up && down)
        ready = !(init(0) || count(&gpus) || !gpus || get(&which, local % gpus) || create(&context, 0, which) ||
                  alloc(&sent, 1 << 20) || alloc(&got, 1 << 20));
    MPI_Allreduce(&ready, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (!all) return 2; /* one rank without a GPU: nobody sends, or its neighbours would wait */
    for (int n = 0; n < 1 << 18; n++) host[n] = n ^ rank;
    up(sent, host, 1 << 20);
    int after = (rank + 1) % size, before = (rank + size - 1) % size, wrong = 0;
    MPI_Sendrecv((void *)(uintptr_t)sent, 1 << 18, MPI_INT, after, 9, (void *)(uintptr_t)got, 1 << 18, MPI_INT, before, 9,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    down(host, got, 1 << 20);
    for (int n = 0; n < 1 << 18; n++) wrong |= host[n] != (n ^ before);
    free(host);
    return wrong;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, size, length, version;
    char name[MPI_MAX_PROCESSOR_NAME] = "", library[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    long samples = argc > 1 ? atol(argv[1]) : 4000000;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Get_processor_name(name, &length);
    MPI_Get_library_version(library, &version);
    MPI_Comm node;
    int local;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node);
    MPI_Comm_rank(node, &local);
    char *names = malloc((size_t)size * MPI_MAX_PROCESSOR_NAME);
    MPI_Gather(name, MPI_MAX_PROCESSOR_NAME, MPI_CHAR, names, MPI_MAX_PROCESSOR_NAME, MPI_CHAR, 0, MPI_COMM_WORLD);
    int hosts = 0, wrong = exact(rank, size), all = 0;
    for (int n = 0; rank == 0 && n < size; n++) {
        int known = 0;
        for (int m = 0; m < n; m++) known |= !strcmp(names + n * MPI_MAX_PROCESSOR_NAME, names + m * MPI_MAX_PROCESSOR_NAME);
        hosts += !known;
    }
    MPI_Reduce(&wrong, &all, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    for (char *c = library; *c; c++) if (*c == '"' || *c == '\\' || *c < 32) *c = ' ';
    if (rank == 0)
        printf("{\"world\": %d, \"hosts\": %d, \"wrong\": %d, \"library\": \"%.120s\", \"runs\": [", size, hosts, all,
               library);
    for (int members = 1, first = 1; members <= size; members = members == size ? size + 1 : members * 2 > size ? size : members * 2) {
        MPI_Comm part;
        MPI_Comm_split(MPI_COMM_WORLD, rank < members ? 0 : MPI_UNDEFINED, rank, &part);
        if (part != MPI_COMM_NULL) {
            double begin = MPI_Wtime(), dots = monte_carlo(part, samples), middle = MPI_Wtime();
            double area = midpoint(part, samples), end = MPI_Wtime();
            double weak_begin = MPI_Wtime(), weak = monte_carlo(part, samples * members), weak_end = MPI_Wtime();
            if (rank == 0)
                printf("%s{\"ranks\": %d, \"monte_carlo\": %.12f, \"strong_s\": %.6f, \"midpoint\": %.14f, \"midpoint_s\": %.6f, "
                       "\"weak\": %.12f, \"weak_s\": %.6f}", first ? "" : ", ", members, dots, middle - begin, area, end - middle, weak,
                       weak_end - weak_begin);
            first = 0;
            MPI_Comm_free(&part);
        }
        MPI_Barrier(MPI_COMM_WORLD);
    }
    if (rank == 0) printf("]}\n");
    fflush(stdout); /* an MPI that is not built for CUDA may die of what follows: all else is told before */
#ifdef HPCSTACK_CUDA
    if (getenv("HPCSTACK_SMOKE_CUDA")) {
        long mine[2] = {0, 0}, sum[2] = {0, 0};
        double took = 0, slowest = 0;
        int error = hpcstack_gpu_pi(samples * 50, rank, local, &mine[0], &mine[1], &took), bad = 0;
        MPI_Reduce(mine, sum, 2, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
        MPI_Reduce(&took, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
        MPI_Reduce(&error, &bad, 1, MPI_INT, MPI_MAX, 0, MPI_COMM_WORLD);
        if (rank == 0)
            printf("{\"gpu_inside\": %ld, \"gpu_thrown\": %ld, \"gpu_s\": %.6f, \"gpu_error\": %d}\n", sum[0], sum[1], slowest, bad);
    }
    fflush(stdout);
#endif
    if (getenv("HPCSTACK_SMOKE_DEVICE")) {
        int gpu = device(rank, size, local), most = 0;
        MPI_Reduce(&gpu, &most, 1, MPI_INT, MPI_MAX, 0, MPI_COMM_WORLD);
        if (rank == 0) printf("{\"device\": %d}\n", most);
    }
    MPI_Finalize();
    return 0;
}
"""
