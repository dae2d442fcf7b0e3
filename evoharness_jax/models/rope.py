"""Rotary positions: how fast each pair of a head's entries turns, and the turning.

    entry i and entry i + E/2 of a head turn by   position * frequency[i]   radians
    frequency[i] = theta ** (-2 i / E)            and what `Scaling` makes of it

Axis legend: B rows, L tokens, H heads, E entries of a head. Frequencies are constants
of a config, made on the host in the order of operations of the published models, so
that they are the same float32 numbers: at position 40,000 one unit in the last place
of a frequency is a turn of 0.002 radians.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

KINDS = ("linear", "yarn", "llama3")


@dataclass(frozen=True)
class Scaling:
    """How a model reads further than the `original_length` it was trained on.

        linear   every frequency divided by `factor`
        yarn     slow ones divided, fast ones kept, a ramp between; cos and sin grow by
                 `attention_factor` (arXiv 2309.00071, section 3.4)
        llama3   the same idea with a ramp over the wave length

    Kinds that depend on how long the batch happens to be (dynamic, longrope) have no
    place here: a cached key would have to turn again when its row grows.

    Raises:
        ValueError: an unknown kind, or a number that its formula cannot take.
    """

    kind: str
    factor: float
    original_length: int | None = None  # positions; yarn and llama3
    attention_factor: float | None = None  # yarn; None: 0.1 ln(factor) + 1
    beta_fast: float = 32.0  # yarn: pairs that turn so often in original_length stay
    beta_slow: float = 1.0  # yarn: pairs that turn less often are divided
    truncate: bool = True  # yarn: the ramp begins and ends at whole entries
    low_freq_factor: float | None = None  # llama3
    high_freq_factor: float | None = None  # llama3

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ValueError(f"rope of type {self.kind!r} is not one of {list(KINDS)}")
        needs = {
            "linear": (),
            "yarn": ("original_length",),
            "llama3": ("original_length", "low_freq_factor", "high_freq_factor"),
        }
        for name in ("factor", *needs[self.kind]):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"rope of type {self.kind!r} needs {name}: {value!r}")
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"rope {name} must be positive: {value!r}")
        if self.kind == "llama3" and self.high_freq_factor <= self.low_freq_factor:
            low, high = self.low_freq_factor, self.high_freq_factor
            raise ValueError(f"llama3 rope: {high=} must be more than {low=}")


def yarn_attention(factor: float) -> float:
    """Return by how much yarn multiplies cos and sin, unless a config says."""
    return 1.0 if factor <= 1 else 0.1 * math.log(factor) + 1.0


def frequencies(
    head_dim: int, theta: float, scaling: Scaling | None = None
) -> tuple[np.ndarray, float]:
    """Return the frequencies, float32[E/2] radians a position, and the factor of cos
    and sin (1.0 but for yarn).
    """
    exponent = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    # Float64 and rounded once: a float32 power is off in the last place here and there.
    periods = np.power(theta, exponent.astype(np.float64)).astype(np.float32)
    plain = np.float32(1) / periods
    if scaling is None:
        return plain, 1.0
    if scaling.kind == "linear":
        return plain / np.float32(scaling.factor), 1.0
    if scaling.kind == "llama3":
        return _llama3(plain, scaling), 1.0
    given = scaling.attention_factor
    grown = yarn_attention(scaling.factor) if given is None else given
    return _yarn(periods, theta, scaling), float(grown)


def _yarn(periods, theta, scaling):
    half = len(periods)

    def entry(turns):
        """The (fractional) entry that turns so often within the original length."""
        wave = scaling.original_length / (turns * 2 * math.pi)
        return half * math.log(wave) / math.log(theta)

    low, high = entry(scaling.beta_fast), entry(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * half - 1)
    width = high - low or 0.001  # a step instead of a ramp must not divide by zero
    ramp = np.clip((np.arange(half, dtype=np.float32) - low) / width, 0, 1)
    kept = 1 - ramp.astype(np.float32)
    slowed = np.float32(1) / (np.float32(scaling.factor) * periods)
    return slowed * (1 - kept) + np.float32(1) / periods * kept


def _llama3(plain, scaling):
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    wave = (2 * math.pi / plain).astype(np.float32)
    slowed = plain / np.float32(scaling.factor)
    ramp = (scaling.original_length / wave - low) / (high - low)
    ramp = np.clip(ramp, 0, 1).astype(np.float32)
    return ((1 - ramp) * slowed + ramp * plain).astype(np.float32)


def angles(
    positions: jax.Array,
    head_dim: int,
    theta: float,
    scaling: Scaling | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Return cos and sin, float32[B, 1, L, E/2], of int32[B, L] positions."""
    turns, grown = frequencies(head_dim, theta, scaling)
    angle = positions[:, None, :, None] * turns
    return jnp.cos(angle) * grown, jnp.sin(angle) * grown


def rope(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Rotate x[B, H, L, E] in float32; entry i turns with entry i + E/2."""
    # As a roll: two halves cut apart and put together cost CPU training 5 % of a step.
    cos = jnp.concatenate([cos, cos], axis=-1)
    sin = jnp.concatenate([-sin, sin], axis=-1)
    y = x.astype(jnp.float32)
    return (y * cos + jnp.roll(y, y.shape[-1] // 2, axis=-1) * sin).astype(x.dtype)
