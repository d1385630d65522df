"""The smoke-test suite: what runs inside an image and says whether GPU, fabric, NCCL and training work.

It needs the standard library alone; checks that need torch or DeepSpeed say SKIP where those are missing.
"""

__version__ = "0.3.0"
