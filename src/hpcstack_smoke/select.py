"""The table of all checks, and which of them a run asks for.

Recipes, gates and histories name checks by their codes: a code, once released, does not change.
"""

from __future__ import annotations

from typing import NamedTuple

TIERS = ("quick", "standard", "full")  # each holds those before it
# a tier of its own: minutes of load, between the quick checks of a node and its counters
BURN = "burn"
# seconds without a result after which ranks are ended; a check may have to compile something first
STALL_S = {"quick": 150.0, "standard": 240.0, "full": 600.0, BURN: 240.0}
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
    - `named`: it depends on more than site.yaml says (a second GPU, RoCE, Lustre, what the image
      holds); a recipe can require it only by its own code
    - `-`: all
    """

    code: str  # FAMILY.NAME
    scope: str
    tier: str  # the lowest tier that runs it
    needs: str
    where: str  # MODULE:FUNCTION below this package
    about: str  # what it tests, in a line; docs/testing.md has the same words

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
node.image         quick    -      node.host:image              the image says that it is the stack that was asked for
node.torch         quick    named  node.host:torch_is_the_bases torch is the base image's own build
node.driver        quick    gpu    node.host:driver             the NVIDIA kernel driver is there
node.gpus          quick    gpu    node.host:gpus               as many GPUs as the step asked for
node.shm           quick    -      node.host:shared_memory      /dev/shm is writable and large enough
node.ecc           quick    gpu    node.gpu:ecc                 no uncorrectable memory error, no row to remap
node.xid           quick    gpu    node.gpu:xid                 no Xid in the kernel log that takes a GPU out of service
node.throttle      quick    gpu    node.gpu:throttle            no GPU is slowed down by heat or power
node.pcie          quick    gpu    node.gpu:pcie                each GPU's PCIe link has its full generation and width
node.nvlink        quick    named  node.nvlink:nvlink           every NVLink is active, as many and as fast as due
node.nvlink-fabric quick    named  node.nvlink:fabric           the GPUs have joined NVSwitch's fabric, and it is healthy
node.imex          quick    named  node.nvlink:imex             where NVLink spans nodes: IMEX's channel and daemon
node.persistence   standard named  node.gpu:persistence         the driver stays loaded between jobs
fabric.hcas        quick    fabric node.fabric:hcas             every port that the site promises is active
fabric.rate        quick    fabric node.fabric:rate             all ports of a node have one rate, and the site's
fabric.gid         standard named  node.fabric:gid              RoCE ports have a RoCE v2 GID with an address
fabric.mtu         quick    named  node.fabric:mtu              the interfaces of RoCE ports have one MTU
fabric.memlock     quick    fabric node.fabric:memlock          RDMA may pin memory without limit
fabric.gdr         quick    named  node.fabric:gdr              GPUDirect RDMA has its kernel part
fabric.storage     standard named  node.fabric:storage          GPUDirect Storage has its kernel part
fabric.tools       quick    fabric node.fabric:ib_tools         the InfiniBand user tools start
io.bandwidth       standard -      node.io:bandwidth            write, fsync, read back with a checksum
io.staging         standard -      node.io:staging              a file copied to the node's own disk is the same
io.metadata        standard -      node.io:metadata             how many files a second are made, looked at and removed
io.small           standard -      node.io:small                small reads at random places of a file
io.lock            quick    -      node.io:lock                 flock keeps a second process out
io.lustre          standard named  node.io:lustre               how the run's folder is striped
"""

RANKS = """
ddp.placement          quick    -      collectives.exact:placement        ranks are on as many hosts as the step has nodes
node.same              quick    named  gpu.same:same                      driver, GPU, torch and NCCL are the same on all ranks
node.arch              quick    gpu    gpu.single:arch                    torch has code for this GPU
node.memory            standard gpu    gpu.single:memory                  a pattern written to the GPU's memory is read back
node.hbm               standard gpu    gpu.single:hbm                     bandwidth of the GPU's memory
node.matmul            standard gpu    gpu.single:matmul                  matrix rate, and what slows the GPU down under load
node.copies            standard gpu    gpu.copies:host                    copies of host and GPU, its PCIe link under load
io.gds                 full     -      gpu.gds:read                       a file read straight into the GPU's memory is the same
node.p2p               standard named  gpu.copies:peers                   copies between each two GPUs of the node
nccl.exact             quick    gpu    collectives.exact:nccl_exact       nine collectives by NCCL, compared with ==
nccl.transport         quick    gpu    collectives.transport:check        what NCCL's log says of each pair of ranks
fabric.injected        quick    named  collectives.injected:check         the fabric's libraries are those of the node, not the image's
nccl.bandwidth         quick    gpu    collectives.bandwidth:nccl         bus bandwidth by nccl-tests' definition
nccl.ring              standard named  collectives.line:ring              all_reduce by rings over nodes, against their line rate
nccl.node              standard named  collectives.bandwidth:node         all_reduce within each node, all nodes at once
nccl.latency           standard gpu    collectives.bandwidth:nccl_latency time of small collectives
nccl.pairs             standard named  collectives.pairs:nccl             each two nodes alone: names the slow one
nccl.permutations      standard -      collectives.permutations:nccl      all nodes at once, each with a random partner
nccl.gloo              quick    no-gpu collectives.exact:gloo             nine collectives by gloo on the CPU, compared with ==
nccl.gloo-bandwidth    standard no-gpu collectives.bandwidth:gloo         bus bandwidth of gloo: informational
nccl.gloo-pairs        standard no-gpu collectives.pairs:gloo             each two nodes alone by gloo: names the slow one
nccl.gloo-permutations standard no-gpu collectives.permutations:gloo      all nodes at once by gloo, each with a random partner
ddp.fp32               quick    -      training.ddp:fp32                  DistributedDataParallel
ddp.buckets            standard -      training.ddp:buckets               the same with small buckets
ddp.autocast           standard -      training.ddp:autocast              bf16 autocast
ddp.scaler             standard gpu    training.ddp:scaler                fp16 with GradScaler
fsdp.fsdp2             standard named  training.fsdp:fsdp2                fully_shard
fsdp.fsdp1             standard named  training.fsdp:fsdp1                FullyShardedDataParallel
deepspeed.zero1        standard -      training.zero:zero1                ZeRO 1: the optimizer's state is sharded
deepspeed.zero2        standard -      training.zero:zero2                ZeRO 2: gradients too
deepspeed.zero3        standard -      training.zero:zero3                ZeRO 3: parameters too
deepspeed.offload      full     named  training.zero:offload              the optimizer's state on the CPU
deepspeed.nvme         full     named  training.zero:nvme                 the optimizer's state on a disk, with proof
parallel.tensor        standard -      training.split:tensor              tensor parallel
parallel.pipeline      standard -      training.split:pipeline            pipeline parallel
parallel.mesh          standard named  training.split:mesh                FSDP2 by tensor parallel, in two dimensions
train.checkpointing    standard -      training.features:checkpointing    activations made again in backward
train.compile          full     named  training.features:compiled         torch.compile gives the same steps
train.attention        standard -      training.features:attention        every back end of SDPA gives the same attention
train.loader           standard -      training.loader:loader             DataLoader: shards disjoint and complete, workers swept
train.profiler         standard -      training.features:profiled         torch.profiler writes a trace with the steps in it
train.resume           standard -      training.checkpoint:resume         saved, resumed: the same to the bit
train.reshard          standard -      training.checkpoint:reshard        saved by all ranks, read by one, and back
train.digits           standard -      training.digits:digits             a network learns generated digits, as one process does
train.horovod          full     named  training.extras:horovod            Horovod's all-reduce
train.lightning        full     named  training.extras:lightning          Lightning's trainer
train.dali             full     named  training.extras:dali               DALI's pipeline
burn.compute           burn     -      gpu.burn:burn                      minutes of matrix products, each compared bit for bit
scaling.strong         standard -      training.scaling:strong            the same work on more ranks
scaling.weak           standard -      training.scaling:weak              more work on more ranks
"""

RESTART = """
train.restart full - training.restart:start a rank dies; torchrun starts again and the steps go on
"""

TASKS = """
tasks.exchange     quick    -     apps.exchange:exchange  tasks of all nodes reach each other and agree on a sum
io.shared          quick    -     apps.exchange:shared    every node sees what another wrote in the run's folder
fabric.write       full     named apps.perftest:write_bw  ib_write_bw between neighbouring nodes
jax.psum           quick    -     apps.jax_:psum          jax.distributed: a sum over all processes
tensorflow.sum     quick    -     apps.tensorflow_:total  tf.distribute: a sum over all workers
serve.transformers standard -     apps.serve:transformers `transformers serve`: completions, a stream, 8 at once
serve.triton       quick    -     apps.serve:triton       Triton is ready, a model answers 8 at once
serve.vllm         quick    -     apps.serve:vllm         `vllm serve`: completions, a stream, 8 at once
serve.tensorrt-llm quick    -     apps.serve:tensorrt_llm `trtllm-serve`: completions, a stream, 8 at once
"""

AFTER = """
fabric.counters quick fabric node.fabric:gained   no error counter of a port went up during the run
node.dcgm       full  -      node.dcgm:diagnose   DCGM's own diagnostics, level 2, where its host engine answers
node.counters   quick gpu    node.counters:gained no error counter of a GPU, its NVLink or its slot went up
"""

HOST = """
node.alike quick named node.alike:check nodes of one kind have the same ports, GPUs, driver, firmware
"""

MPI = """
mpi.world   quick    -     apps.mpi:world    as many ranks as tasks, on as many hosts as nodes
mpi.exact   quick    -     apps.mpi:exact    point-to-point and collectives, compared with ==
mpi.device  standard named apps.mpi:device   a GPU's memory is sent and received as it is
mpi.compile standard -     apps.mpi:compiled a program is compiled in the image and started
mpi.cuda    standard named apps.mpi:cuda     a kernel that the image's nvcc compiles, on every rank's GPU
mpi.nccl    standard named apps.mpi:nccl     nccl-tests' own all_reduce_perf, started by MPI
mpi.pi      standard -     apps.mpi:pi       pi by Monte Carlo and by the midpoint rule, on 1 to all ranks
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

    TESTS names them, up to TIER; empty, it names all. One that is named by its own code runs at
    any tier. What SKIP names is left out, and the codes of DONE, which ran before. The tier
    `burn` has checks of its own and the quick ones of nodes and fabric, whatever TESTS says;
    other tiers run a check of `burn` only if TESTS names it.
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
