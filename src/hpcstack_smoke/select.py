"""The table of all checks, and which of them a run asks for.

Recipes, gates and histories name checks by their codes: a code, once released, does not change.
"""

from __future__ import annotations

from typing import NamedTuple

TIERS = ("quick", "standard", "full")  # each runs also the checks of those before it
# a tier of its own: minutes of load, between the quick checks of a node and its counters
BURN = "burn"
# seconds without a result after which ranks are ended; a check may have to compile something first
STALL_S = {"quick": 150.0, "standard": 240.0, "full": 600.0, BURN: 240.0}
# seconds that a tier is expected to take at most; suite/run.py allows twice that
TIER_SECONDS = {"quick": 120, "standard": 900, "full": 7200, BURN: 600}
MINUTES = 10.0  # how long a burn lasts unless the run says otherwise


class Check(NamedTuple):
    """One check.

    `scope` says what runs it:

    - `node`: the agent of each node, with the standard library alone
    - `ranks`: every rank of one torchrun
    - `restart`: the ranks of a torchrun of its own
    - `tasks`: a plain process for each rank, for frameworks with a rendezvous of their own
    - `mpi`: the ranks of a step that Slurm's PMI starts
    - `after`: the agent of each node again, when all else is done
    - `host`: hpcstack itself, which judges once what all nodes left in the run's folder

    `needs` says on which nodes it runs:

    - `gpu`, `no-gpu`: those with real GPUs, those without
    - `fabric`: those with an InfiniBand or RoCE fabric
    - `named`: it depends on more than site.yaml says (a second GPU or node, RoCE, Lustre, what the
      image holds); a recipe can require it only by its own code
    - `-`: all
    """

    code: str  # FAMILY.NAME
    scope: str
    tier: str  # the lowest tier that runs it
    needs: str
    where: str  # MODULE:FUNCTION below this package
    about: str  # what it tests, in a line; docs/reference/test-suite.md has the same words

    @property
    def family(self) -> str:
        return self.code.partition(".")[0]


def _table(scope: str, rows: str) -> tuple[Check, ...]:
    """Return the checks of SCOPE, of which ROWS has one a line: code, tier, needs, where, about."""
    out = []
    for line in rows.strip().splitlines():
        code, tier, needs, where, about = line.split(None, 4)
        out.append(Check(code, scope, tier, needs, where, about))
    return tuple(out)


NODE = """
node.image         quick    -      node.host:check_node_image           the image says that it is the stack that was asked for
node.torch         quick    named  node.host:check_node_torch           torch is the base image's own build
node.driver        quick    gpu    node.host:check_node_driver          the NVIDIA kernel driver is there
node.gpus          quick    gpu    node.host:check_node_gpus            as many GPUs as the step asked for
node.shm           quick    -      node.host:check_node_shm             /dev/shm is writable and large enough
node.ecc           quick    gpu    node.gpu:check_node_ecc              no uncorrectable memory error, no row to remap
node.xid           quick    gpu    node.gpu:check_node_xid              no Xid in the kernel log that takes a GPU out of service
node.throttle      quick    gpu    node.gpu:check_node_throttle         no GPU is slowed down by heat or power
node.pcie          quick    gpu    node.gpu:check_node_pcie             each GPU's PCIe link has its full generation and width
node.nvlink        quick    named  node.nvlink:check_node_nvlink        every NVLink is active, as many and as fast as due
node.nvlink-fabric quick    named  node.nvlink:check_node_nvlink_fabric the GPUs have joined NVSwitch's fabric, and it is healthy
node.imex          quick    named  node.nvlink:check_node_imex          where NVLink spans nodes: IMEX's channel and daemon
node.persistence   standard named  node.gpu:check_node_persistence      the driver stays loaded between jobs
fabric.hcas        quick    fabric node.fabric:check_fabric_hcas        every port that the site promises is active
fabric.rate        quick    fabric node.fabric:check_fabric_rate        all ports of a node have one rate, and the site's
fabric.gid         standard named  node.fabric:check_fabric_gid         RoCE ports have a RoCE v2 GID with an address
fabric.mtu         quick    named  node.fabric:check_fabric_mtu         the interfaces of RoCE ports have one MTU
fabric.memlock     quick    fabric node.fabric:check_fabric_memlock     RDMA may pin memory without limit
fabric.gdr         quick    named  node.fabric:check_fabric_gdr         GPUDirect RDMA has its kernel part
fabric.storage     standard named  node.fabric:check_fabric_storage     GPUDirect Storage has its kernel part
fabric.tools       quick    fabric node.fabric:check_fabric_tools       the InfiniBand user tools start
io.bandwidth       standard -      node.io:check_io_bandwidth           write, fsync, read back with a checksum
io.staging         standard -      node.io:check_io_staging             a file copied to the node's own disk is the same
io.metadata        standard -      node.io:check_io_metadata            how many files a second are made, looked at and removed
io.small           standard -      node.io:check_io_small               small reads at random places of a file
io.lock            quick    -      node.io:check_io_lock                flock keeps a second process out
io.lustre          standard named  node.io:check_io_lustre              how the run's folder is striped
"""

RANKS = """
ddp.placement          quick    -      collectives.exact:check_ddp_placement                 ranks are on as many hosts as the step has nodes
node.same              quick    named  gpu.same:check_node_same                              driver, GPU, torch and NCCL are the same on all ranks
node.arch              quick    gpu    gpu.single:check_node_arch                            torch has code for this GPU
node.memory            standard gpu    gpu.single:check_node_memory                          a pattern written to the GPU's memory is read back
node.hbm               standard gpu    gpu.single:check_node_hbm                             bandwidth of the GPU's memory
node.matmul            standard gpu    gpu.single:check_node_matmul                          matrix rate, and what slows the GPU down under load
node.copies            standard gpu    gpu.copies:check_node_copies                          copies of host and GPU, its PCIe link under load
io.gds                 full     -      gpu.gds:check_io_gds                                  a file read straight into the GPU's memory is the same
node.p2p               standard named  gpu.copies:check_node_p2p                             copies between each two GPUs of the node
nccl.exact             quick    gpu    collectives.exact:check_nccl_exact                    nine collectives by NCCL, compared with ==
nccl.transport         quick    gpu    collectives.transport:check_nccl_transport            what NCCL's log says of each pair of ranks
fabric.injected        quick    named  collectives.injected:check_fabric_injected            the fabric's libraries are those of the node, not the image's
nccl.bandwidth         quick    gpu    collectives.bandwidth:check_nccl_bandwidth            bus bandwidth by nccl-tests' definition
nccl.ring              standard named  collectives.line:check_nccl_ring                      all_reduce by rings over nodes, against their line rate
nccl.node              standard named  collectives.bandwidth:check_nccl_node                 all_reduce within each node, all nodes at once
nccl.latency           standard gpu    collectives.bandwidth:check_nccl_latency              time of small collectives
nccl.pairs             standard named  collectives.pairs:check_nccl_pairs                    each two nodes alone: names the slow one
nccl.permutations      standard named  collectives.permutations:check_nccl_permutations      all nodes at once, each with a random partner
nccl.gloo              quick    no-gpu collectives.exact:check_nccl_gloo                     nine collectives by gloo on the CPU, compared with ==
nccl.gloo-bandwidth    standard no-gpu collectives.bandwidth:check_nccl_gloo_bandwidth       bus bandwidth of gloo: informational
nccl.gloo-pairs        standard named  collectives.pairs:check_nccl_gloo_pairs               each two nodes alone by gloo: names the slow one
nccl.gloo-permutations standard named  collectives.permutations:check_nccl_gloo_permutations all nodes at once by gloo, each with a random partner
ddp.fp32               quick    -      training.ddp:check_ddp_fp32                           DistributedDataParallel
ddp.buckets            standard -      training.ddp:check_ddp_buckets                        the same with small buckets
ddp.autocast           standard -      training.ddp:check_ddp_autocast                       bf16 autocast
ddp.scaler             standard gpu    training.ddp:check_ddp_scaler                         fp16 with GradScaler
fsdp.fsdp2             standard named  training.fsdp:check_fsdp_fsdp2                        fully_shard
fsdp.fsdp1             standard named  training.fsdp:check_fsdp_fsdp1                        FullyShardedDataParallel
deepspeed.zero1        standard -      training.zero:check_deepspeed_zero1                   ZeRO 1: the optimizer's state is sharded
deepspeed.zero2        standard -      training.zero:check_deepspeed_zero2                   ZeRO 2: gradients too
deepspeed.zero3        standard -      training.zero:check_deepspeed_zero3                   ZeRO 3: parameters too
deepspeed.offload      full     named  training.zero:check_deepspeed_offload                 the optimizer's state on the CPU
deepspeed.nvme         full     named  training.zero:check_deepspeed_nvme                    the optimizer's state on a disk, with proof
parallel.tensor        standard -      training.split:check_parallel_tensor                  tensor parallel
parallel.pipeline      standard -      training.split:check_parallel_pipeline                pipeline parallel
parallel.mesh          standard named  training.split:check_parallel_mesh                    FSDP2 by tensor parallel, in two dimensions
train.checkpointing    standard -      training.features:check_train_checkpointing           activations made again in backward
train.compile          full     named  training.features:check_train_compile                 torch.compile gives the same steps
train.attention        standard -      training.features:check_train_attention               every back end of SDPA gives the same attention
train.loader           standard -      training.loader:check_train_loader                    DataLoader: shards disjoint and complete, workers swept
train.profiler         standard -      training.features:check_train_profiler                torch.profiler writes a trace with the steps in it
train.resume           standard -      training.checkpoint:check_train_resume                saved, resumed: the same to the bit
train.reshard          standard -      training.checkpoint:check_train_reshard               saved by all ranks, read by one, and back
train.digits           standard -      training.digits:check_train_digits                    a network learns generated digits, as one process does
train.horovod          full     named  training.extras:check_train_horovod                   Horovod's all-reduce
train.lightning        full     named  training.extras:check_train_lightning                 Lightning's trainer
train.dali             full     named  training.extras:check_train_dali                      DALI's pipeline
burn.compute           burn     -      gpu.burn:check_burn_compute                           minutes of matrix products, each compared bit for bit
scaling.strong         standard -      training.scaling:check_scaling_strong                 the same work on more ranks
scaling.weak           standard -      training.scaling:check_scaling_weak                   more work on more ranks
"""

RESTART = """
train.restart full - training.restart:check_train_restart a rank dies; torchrun starts again and the steps go on
"""

TASKS = """
tasks.exchange     quick    -     apps.exchange:check_tasks_exchange    tasks of all nodes reach each other and agree on a sum
io.shared          quick    -     apps.exchange:check_io_shared         every node sees what another wrote in the run's folder
fabric.write       full     named apps.perftest:check_fabric_write      ib_write_bw between neighbouring nodes
jax.psum           quick    -     apps.jax_:check_jax_psum              jax.distributed: a sum over all processes
tensorflow.sum     quick    -     apps.tensorflow_:check_tensorflow_sum tf.distribute: a sum over all workers
serve.transformers standard -     apps.serve:check_serve_transformers   `transformers serve`: completions, a stream, 8 at once
serve.triton       quick    -     apps.serve:check_serve_triton         Triton is ready, a model answers 8 at once
serve.vllm         quick    -     apps.serve:check_serve_vllm           `vllm serve`: completions, a stream, 8 at once
serve.tensorrt-llm quick    -     apps.serve:check_serve_tensorrt_llm   `trtllm-serve`: completions, a stream, 8 at once
"""

AFTER = """
fabric.counters quick fabric node.fabric:check_fabric_counters no error counter of a port went up during the run
node.dcgm       full  -      node.dcgm:check_node_dcgm         DCGM's own diagnostics, level 2, where its host engine answers
node.counters   quick gpu    node.counters:check_node_counters no error counter of a GPU, its NVLink or its slot went up
"""

HOST = """
node.alike quick named node.alike:check_node_alike nodes of one kind have the same ports, GPUs, driver, firmware
"""

MPI = """
mpi.world   quick    -     apps.mpi:check_mpi_world   as many ranks as tasks, on as many hosts as nodes
mpi.exact   quick    -     apps.mpi:check_mpi_exact   point-to-point and collectives, compared with ==
mpi.device  standard named apps.mpi:check_mpi_device  a GPU's memory is sent and received as it is
mpi.compile standard -     apps.mpi:check_mpi_compile a program is compiled in the image and started
mpi.cuda    standard named apps.mpi:check_mpi_cuda    a kernel that the image's nvcc compiles, on every rank's GPU
mpi.nccl    standard named apps.mpi:check_mpi_nccl    nccl-tests' own all_reduce_perf, started by MPI
mpi.pi      standard -     apps.mpi:check_mpi_pi      pi by Monte Carlo and by the midpoint rule, on 1 to all ranks
"""

CHECKS = (
    *_table("node", NODE),
    *_table("ranks", RANKS),
    *_table("restart", RESTART),
    *_table("tasks", TASKS),
    *_table("mpi", MPI),
    *_table("after", AFTER),
    *_table("host", HOST),
)
SCOPES = ("node", "ranks", "restart", "tasks", "mpi", "after", "host")
FAMILIES = tuple(dict.fromkeys(check.family for check in CHECKS))
GROUPS = {"training": ("ddp", "fsdp", "deepspeed", "parallel", "train")}


def list_names() -> tuple[str, ...]:
    """Return every word that --only, --skip and a recipe's `tests` take: groups, families, codes."""
    return (*GROUPS, *FAMILIES, *(check.code for check in CHECKS))


def is_named(check: Check, words: str) -> bool:
    """Whether WORDS name CHECK. WORDS are codes, families or groups, separated by commas."""
    for word in words.split(","):
        if not word:
            continue
        if word in (check.code, check.family) or check.family in GROUPS.get(word, ()):
            return True
    return False


def select_checks(
    tests: str, scope: str, tier: str = "full", skip: str = "", done: str = ""
) -> list[Check]:
    """Return the checks of SCOPE that a run asks for, in the order of the table.

    TESTS and SKIP are codes, families or groups, DONE are codes, each separated by commas:

    - an empty TESTS means all checks up to TIER
    - a check whose tier is above TIER runs only if TESTS has its own code
    - what SKIP names is left out, and so is DONE, which ran before
    - the tier `burn` runs its own checks, and the quick ones of nodes and fabric, whatever TESTS
      says; at other tiers a check of `burn` runs only if TESTS names it
    """
    done_codes = done.split(",")
    out = []
    for check in CHECKS:
        if check.scope != scope or is_named(check, skip) or check.code in done_codes:
            continue
        if _is_wanted(check, tests, tier):
            out.append(check)
    return out


def _is_wanted(check: Check, tests: str, tier: str) -> bool:
    """Whether a run of TESTS at TIER wants CHECK, as `select_checks` explains."""
    if tier == BURN:
        quick_of_node = check.tier == "quick" and check.family in ("node", "fabric")
        return check.tier == BURN or quick_of_node

    words = tests.split(",")
    if check.tier == BURN:
        return check.family in words or check.code in words
    if tests and not is_named(check, tests):
        return False
    return TIERS.index(check.tier) <= TIERS.index(tier) or check.code in words
