"""TPU slices: what they are called, how many chips they have, what a chip holds.

A topology is a kind and its chips' arrangement, "v5e:4x4". A slice is what one rents:
v5e-N and v6e-N count chips, v5p-N counts cores, two a chip.
"""

from typing import NamedTuple

import jax
from jax.experimental import topologies
from jax.sharding import Mesh

from evoharness_jax import mesh as meshes

GIB = 2**30
# Kind -> GiB of a chip's memory that a program may use, as the compiler states it.
USABLE = {"v5e": 15.75, "v5p": 95.74, "v6e": 31.25}


class Slice(NamedTuple):
    """One that can be rented."""

    topology: str
    chips: int
    tp: int  # of a rollout: chips that share a model's rollout weights, on one host


SLICES = {
    "v5e-8": Slice("v5e:2x4", 8, 8),
    "v5e-16": Slice("v5e:4x4", 16, 4),
    "v5e-64": Slice("v5e:8x8", 64, 4),
    "v5p-8": Slice("v5p:2x2x1", 4, 4),
    "v5p-16": Slice("v5p:2x2x2", 8, 4),
    "v6e-8": Slice("v6e:2x4", 8, 8),
    "v6e-16": Slice("v6e:4x4", 16, 4),
}


def kind(topology: str) -> str:
    """Return the kind of a topology: "v5e" of "v5e:4x4".

    Raises:
        ValueError: it is not one whose memory is known.
    """
    name, colon, _ = topology.partition(":")
    if name not in USABLE or not colon:
        known = ", ".join(f"{kind}:AxB" for kind in USABLE)
        meant = SLICES.get(topology)
        hint = f"; {topology} is {meant.topology}" if meant else ""
        raise ValueError(f"--topology: {topology!r} is not one of {known}{hint}")
    return name


def devices(topology: str) -> list[jax.Device]:
    """Return the devices of a topology; nothing can run on them.

    Raises:
        ValueError: there is no such topology, or no libtpu to ask.
    """
    # Eight chips of v5e and v6e are one host, which has to be said.
    whole = topology in ("v5e:2x4", "v6e:2x4")
    more = {"chips_per_host_bounds": (2, 4, 1)} if whole else {}
    if topology.endswith(":1x1"):
        more = {"chips_per_host_bounds": (1, 1, 1)}
    kind(topology)
    try:
        found = topologies.get_topology_desc(
            platform="tpu", topology_name=topology, **more
        )
    except (RuntimeError, ValueError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"--topology: {topology!r}: {reason}") from None
    return list(found.devices)


def mesh(topology: str, tp: int) -> Mesh:
    """Arrange a topology's chips as a mesh (fsdp, tp).

    Raises:
        ValueError: no such topology, or tp does not divide its chips.
    """
    chips = devices(topology)
    if tp < 1 or len(chips) % tp:
        raise ValueError(f"--tp: {tp} does not divide the {len(chips)} chips")
    return meshes.make(-1, tp, chips)
