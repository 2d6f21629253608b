"""Waits of a schedule by hand: products of known FLOPs, sends of known bytes, within a node and between nodes."""

import pytest

from scalelab.plan.compiled import timeline
from scalelab.plan.compiled.program import list_groups

# 16 FLOPs, 8 bytes of memory, 4 bytes sent within a node of two devices and 1 a device between nodes, each a second.
RATES = timeline.Rates(
    flops_per_s=16.0, memory_bytes_per_s=8.0, near_bytes_per_s=4.0, port_bytes_per_s=1.0, devices_per_node=2
)

TEXT = """\
HloModule jit_step, is_scheduled=true

%product (a.1: s8[2,4], b.1: s8[4,2]) -> s8[2,2] {
  %a.1 = s8[2,4]{1,0} parameter(0)
  %b.1 = s8[4,2]{1,0} parameter(1)
  ROOT %dot = s8[2,2]{1,0} dot(%a.1, %b.1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%update (buffer: s8[1000], row: s8[8], i: s32[]) -> s8[1000] {
  %buffer = s8[1000]{0} parameter(0)
  %row = s8[8]{0} parameter(1)
  %i = s32[] parameter(2)
  ROOT %written = s8[1000]{0} dynamic-update-slice(%buffer, %row, %i)
}

ENTRY %main (a: s8[2,4], b: s8[4,2]) -> s8[2,2] {
  %a = s8[2,4]{1,0} parameter(0)
  %b = s8[4,2]{1,0} parameter(1)
LINES
}
"""
NEAR = "replica_groups={{0,1},{2,3}}"  # each sends half of what it gathers
FAR = "replica_groups={{0,2},{1,3}}"  # one device a node: its own port alone
START = "  %{name} = (s8[{half}], s8[{size}]) all-gather-start(%a), {groups}, dimensions={{0}}"
DONE = "  %{name}.done = s8[{size}]{{0}} all-gather-done(%{name})"
PRODUCT = "  %product.{i} = s8[2,2]{{1,0}} fusion(%a, %b), kind=kOutput, calls=%product"


def played(*lines):
    return timeline.play_schedule(TEXT.replace("LINES", "\n".join(lines)), RATES)


def start(name, size, groups):
    return START.format(name=name, size=size, half=size // 2, groups=groups)


def done(name, size):
    return DONE.format(name=name, size=size)


def product(i):
    return PRODUCT.format(i=i)


def test_a_product_takes_the_longer_of_its_flops_and_its_bytes():
    """2 x 2 x 4 x 2 = 32 FLOPs are 2 s; 8 + 8 bytes read and 4 written are 2.5 s."""
    assert played(product(1)) == (2.5, 0.0, 0.0)


def test_what_is_awaited_at_once_is_waited_for_and_what_goes_on_beside_a_product_is_not():
    """32 bytes gathered from two devices: 16 sent, 4 s within the node."""
    assert played(start("g", 32, NEAR), done("g", 32), product(1)) == (2.5, 4.0, 4.0)
    assert played(start("g", 32, NEAR), product(1), done("g", 32)) == (2.5, 4.0, 1.5)
    assert played(start("g", 32, NEAR), product(1), product(2), done("g", 32)) == (5.0, 4.0, 0.0)


def test_one_network_sends_in_turn_and_two_at_once():
    """Two gathers of 4 s end after 8 s over one network; over two, the far one of 8 bytes sent takes 8 s alone."""
    in_turn = played(start("g", 32, NEAR), start("h", 32, NEAR), done("g", 32), done("h", 32))
    assert in_turn == (0.0, 8.0, 8.0)
    at_once = played(start("g", 32, NEAR), start("f", 16, FAR), done("g", 32), done("f", 16))
    assert at_once == (0.0, 12.0, 8.0)


def test_a_collective_without_a_start_is_waited_for():
    assert played("  %g = s8[32]{0} all-gather(%a), " + NEAR) == (0.0, 4.0, 4.0)


def test_a_loop_counts_its_rounds():
    loop = "  %loop = s8[2,2] while(%a), condition=%none, body=%main, "
    body = [
        start("g", 32, NEAR),
        product(1),
        done("g", 32),
        "}",
        "ENTRY %real (a: s8[2,4]) -> s8[2,2] {",
        "  %a = s8[2,4]{1,0} parameter(0)",
        loop + 'backend_config={"known_trip_count":{"n":"5"}}',
    ]
    text = TEXT.replace("ENTRY %main", "%main").replace("LINES", "\n".join(body))
    assert timeline.play_schedule(text, RATES) == (5 * 2.5, 5 * 4.0, 5 * 1.5)


def test_a_row_written_into_a_buffer_costs_the_row_alone():
    """8 bytes read, 4 of the index, 8 written."""
    line = "  %w = s8[1000]{0} fusion(%big, %a, %i), kind=kLoop, calls=%update"
    assert played(line).computing_s == pytest.approx(20 / 8)


@pytest.mark.parametrize(
    "groups, expected",
    [
        ("replica_groups=[2,4]<=[8], dimensions={0}", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("replica_groups=[4,2]<=[2,4]T(1,0)", [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ("replica_groups=mesh['a'=2,'b'=2,'c'=2] {'a','c'}", [[0, 1, 4, 5], [2, 3, 6, 7]]),
        ("replica_groups={{0,2},{1,3}}, use_global_device_ids=true", [[0, 2], [1, 3]]),
        ("source_target_pairs={{0,1},{1,0}}", []),
    ],
)
def test_groups_are_read_in_each_of_their_forms(groups, expected):
    assert list_groups(groups) == expected


def test_a_call_of_cublas_takes_its_products_flops_and_no_bytes_for_its_workspace():
    """As `product`: 8 + 8 bytes read and 4 written; batched twice, 4 + 4 + 2 numbers a batch are 32 FLOPs in all."""
    call = '  %call = (s8[2,2]{1,0}, s8[4096]{0}) custom-call(%a, %b), custom_call_target="__cublas$lt$matmul"'
    assert played(call) == (2.5, 0.0, 0.0)
    many = "  %{0} = s8[2,{1}]{{1,0}} bitcast(%a)"
    batched = call.replace("s8[2,2]", "s8[2,200,200]").replace("%a, %b", "%c, %d")
    names = [many.format("c", "200,2"), many.format("d", "2,200")]
    config = ', backend_config={"lhs_batch_dimensions":["0"]}'
    assert played(*names, batched + config) == (2 * 2 * 200 * 2 * 200 / 16, 0.0, 0.0)
