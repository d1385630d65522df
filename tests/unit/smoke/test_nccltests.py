"""The tables of nccl-tests and perftest, read.

Their form is that of the programs' own sources; no rig of ours printed them.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hpcstack_smoke.apps.perftest import read_average
from hpcstack_smoke.collectives.nccltests import read_table

TABLE = """\
# nThread 1 nGpus 1 minBytes 8 maxBytes 1073741824 step: 4(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1
#  Rank  0 Group  0 Pid   4190 on      node1 device  0 [0x18] NVIDIA H100
#  Rank  1 Group  0 Pid   4191 on      node2 device  0 [0x18] NVIDIA H100
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           8             2     float     sum      -1    20.10    0.00    0.00      0    19.90    0.00    0.00      0
  1073741824     268435456     float     sum      -1  24000.0   44.74   44.74      0  24010.0   44.72   44.72    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 22.3700
"""


def test_the_table_of_nccl_tests() -> None:
    table = read_table(TABLE)
    assert table.rows == {8: (20.1, 0.0), 1 << 30: (24000.0, 44.74)}
    assert (table.wrong, table.ranks, table.average) == (0, 2, 22.37)


def test_wrong_values_count_wherever_they_are_told() -> None:
    assert read_table(TABLE.replace("0.00      0    19.90", "0.00      3    19.90")).wrong == 3
    assert read_table(TABLE.replace("values : 0 OK", "values : 7 FAILED")).wrong == 7


def test_a_row_with_a_line_of_nccls_in_it_is_left_out() -> None:
    torn = TABLE.replace(
        "  1073741824     268435456", "  1073741824     node1:1:2 [0] NCCL INFO x\n268435456"
    )
    assert list(read_table(torn).rows) == [8]


def test_ib_write_bw() -> None:
    text = (
        " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n 65536  "
        "    1800000          0.00               393.40 \t\t   0.750347\n"
    )
    assert read_average(text) == 393.4
    assert read_average("no such device") == 0.0


@given(st.text())
def test_no_text_breaks_the_readers(text: str) -> None:
    read_table(text)
    read_average(text)
