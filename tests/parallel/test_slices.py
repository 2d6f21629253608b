"""A mesh over several slices: its outermost axes take the network between them, and the others stay within one."""

import types

import numpy as np
import pytest

from scalelab.config import Layout
from scalelab.errors import BadInput
from scalelab.parallel import mesh


class Device(types.SimpleNamespace):
    """A stand-in that says what jax asks of a device to lay it out; none is ever used."""

    __hash__ = object.__hash__


def devices(slices, each):
    return [
        Device(id=s * each + i, slice_index=s, process_index=s, platform="cpu", device_kind="cpu")
        for s in range(slices)
        for i in range(each)
    ]


@pytest.mark.parametrize(
    ("layout", "slices", "across"),
    [
        (Layout(data=2, fsdp=4), 2, {"data": 2}),
        (Layout(fsdp=4, tensor=2), 2, {"fsdp": 2}),
        (Layout(stage=2, data=2, tensor=2), 4, {"stage": 2, "data": 2}),
        (Layout(data=3, fsdp=4), 6, {"data": 3, "fsdp": 2}),
        (Layout(fsdp=2, context=4, tensor=2), 4, {"fsdp": 2, "context": 2}),  # a long sequence over two hosts of a pair
        (Layout(expert=8), 2, {"expert": 2}),
        (Layout(tensor=4), 2, {"tensor": 2}),
    ],
    ids=str,
)
def test_the_outermost_axes_go_over_the_network(layout, slices, across):
    device_mesh = mesh.mesh_over_devices(layout, devices(slices, layout.devices // slices))
    of_slice = np.vectorize(lambda device: device.slice_index)(device_mesh.devices)
    assert len({device.id for device in device_mesh.devices.flat}) == layout.devices
    for number, axis in enumerate(mesh.MESH_AXES):
        within = layout.__dict__[axis] // across.get(axis, 1)  # so many neighbours along this axis share a slice
        first = np.take(of_slice, range(within), axis=number)
        assert (first == np.take(first, [0], axis=number)).all(), axis
    assert len(set(of_slice.flat)) == slices


def test_slices_with_unequal_numbers_of_devices_are_refused():
    with pytest.raises(BadInput, match=r"6 devices lie in 2 slices .* with 2 and 4 each; .* nearest: 2 in each"):
        mesh.mesh_over_devices(Layout(data=6), devices(1, 4) + devices(2, 2)[2:])


def test_a_torus_whose_sides_are_no_products_of_the_sizes_is_split():
    """64 chips of v4 as 4 x 4 x 4: jax.make_mesh refuses an axis of two."""
    chips = [
        Device(
            id=i,
            coords=(i % 4, i // 4 % 4, i // 16),
            core_on_chip=0,
            process_index=i // 4,
            platform="tpu",
            device_kind="TPU v4",
        )
        for i in range(64)
    ]
    device_mesh = mesh.mesh_over_devices(Layout(fsdp=32, tensor=2), chips)
    assert {device.id for device in device_mesh.devices.flat} == set(range(64))
    pairs = device_mesh.devices.reshape(32, 2)
    apart = [sum(a != b for a, b in zip(one.coords, other.coords, strict=True)) for one, other in pairs]
    assert set(apart) == {1}  # neighbours along `tensor` share a line of the torus
