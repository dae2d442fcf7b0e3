"""The Qwen3 decoder as a Flax module: shapes, layers, logical axes.

    x = embed[tokens]
    layer (scanned): x += o(attend(rope(norm(q)), rope(norm(k)), v))
                     x += down(silu(gate(x)) * up(x))      both on rms_norm(x)
    hidden = rms_norm(x)            logits = hidden @ head.T   (head: embed if tied)

Axis legend: B rows, L tokens, D width, V vocabulary, H query heads, K key/value
heads, E entries of a head, F MLP columns, R rank of an adapter, N = B L. A layer's
parameters are stacked on axis 0. Norms, rope and softmax are float32 whatever the
compute dtype; parameters are cast where they are used, so that sharded master weights
travel in the compute dtype.
`models.qwen3` has the pure functions that everything else calls.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import linen as nn

from evoharness_jax.mesh import constrain
from evoharness_jax.models import narrow
from evoharness_jax.models.attention import IMPLEMENTATIONS, Cache, attend, write
from evoharness_jax.models.rope import Scaling, angles, rope

# What the backward pass keeps of a layer. "full" recomputes everything.
REMAT = {
    "none": None,
    "full": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


@dataclass(frozen=True)
class Config:
    """Shape and numerics of one model; hashable, so it can be a static argument."""

    vocab_size: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    rope_theta: float = 1e6
    rope_scaling: Scaling | None = None  # or the dict of its fields, as JSON keeps it
    rms_eps: float = 1e-6
    tie_embeddings: bool = False
    dtype: str = "float32"  # compute
    param_dtype: str = "float32"  # what `init` makes
    remat: str = "none"
    attention: str = "xla"
    qk_norm: bool = True
    unroll: int = 1  # layers in one step of the loop; all of them is faster on CPU

    def __post_init__(self):
        if isinstance(self.rope_scaling, dict):
            object.__setattr__(self, "rope_scaling", Scaling(**self.rope_scaling))
        if self.heads % self.kv_heads:
            raise ValueError(
                f"kv_heads must divide heads: {self.kv_heads=} {self.heads=}"
            )
        if self.head_dim % 2:
            raise ValueError(f"rope needs an even head_dim: {self.head_dim=}")
        if self.remat not in REMAT:
            raise ValueError(f"{self.remat=} is not one of {sorted(REMAT)}")
        if self.attention not in IMPLEMENTATIONS:
            raise ValueError(
                f"{self.attention=} is not one of {sorted(IMPLEMENTATIONS)}"
            )


def _qwen3(width, layers, heads, mlp, tied):
    """A published dense Qwen3: what its sizes have in common."""
    return Config(
        vocab_size=151936,
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=8,
        head_dim=128,
        mlp=mlp,
        tie_embeddings=tied,
        dtype="bfloat16",
        remat="full",
    )


CONFIGS: dict[str, Config] = {
    "qwen3-0.6b": _qwen3(1024, 28, 16, 3072, tied=True),
    "qwen3-1.7b": _qwen3(2048, 28, 16, 6144, tied=True),
    "qwen3-4b": _qwen3(2560, 36, 32, 9728, tied=True),
    "qwen3-8b": _qwen3(4096, 36, 32, 12288, tied=False),
    "qwen3-14b": _qwen3(5120, 40, 40, 17408, tied=False),
    "qwen3-32b": _qwen3(5120, 64, 64, 25600, tied=False),
    "household-tiny": Config(
        vocab_size=1024,
        width=128,
        layers=4,
        heads=4,
        kv_heads=2,
        head_dim=32,
        mlp=384,
        rope_theta=1e4,
        tie_embeddings=True,
        unroll=4,
        attention="blocks",
    ),
    "counter-tiny": Config(
        vocab_size=512,
        width=64,
        layers=2,
        heads=2,
        kv_heads=1,
        head_dim=32,
        mlp=128,
        rope_theta=1e4,
        tie_embeddings=True,
        unroll=2,
        attention="blocks",
    ),
}


def _rms(x, scale, eps):
    y = x.astype(jnp.float32)
    y *= jax.lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + eps)
    return (y * scale.astype(jnp.float32)).astype(x.dtype)


def _param(module, name, shape, axes, init):
    boxed = nn.with_logical_partitioning(init, axes)
    return module.param(name, boxed, shape, jnp.dtype(module.config.param_dtype))


def _normal(config, residual=False):
    # What is added to the residual stream is scaled so that depth does not widen it.
    return nn.initializers.normal(0.02 / (2 * config.layers) ** (0.5 * residual))


class Block(nn.Module):
    """One layer. `carry` is the residual stream and the whole cache (or None).

    The cache is carried, not scanned over: a scanned cache would be a second buffer
    in the loop, a carried one is updated in place.
    """

    config: Config

    @nn.compact
    def __call__(self, carry, turns, mask, slots, one, layer):
        x, cache = carry
        c = self.config
        D, H, K, E, F = c.width, c.heads, c.kv_heads, c.head_dim, c.mlp

        def weight(name, shape, axes, residual=False):
            own = _param(self, name, shape, axes, _normal(c, residual))
            if self.has_variable(narrow.KEY, name):
                standing = self.get_variable(narrow.KEY, name)
                return narrow.cast_for(own, one, standing)
            return narrow.cast(own, one, jnp.dtype(c.dtype))

        def norm(name, size, y):
            scale = _param(self, name, (size,), ("norm",), nn.initializers.ones)
            return _rms(y, scale, c.rms_eps)

        def adapted(name, y, into, out_of, out):
            """Add what a LoRA adapter (`models.lora`) says, where there is one."""
            if not self.has_variable("lora", name):
                return out
            matrices = self.get_variable("lora", name)
            a, b = (matrices[part].astype(c.dtype) for part in ("a", "b"))
            return out + jnp.einsum(out_of, jnp.einsum(into, y, a), b)

        y = norm("attn_norm", D, x)
        kv_axes = ("embed", "kv_heads", "head_dim")
        q = weight("q", (D, H, E), ("embed", "heads", "head_dim"))
        q = jnp.einsum("BLD,DHE->BHLE", y, q)
        k = jnp.einsum("BLD,DKE->BKLE", y, weight("k", (D, K, E), kv_axes))
        v = jnp.einsum("BLD,DKE->BKLE", y, weight("v", (D, K, E), kv_axes))
        q = adapted("q", y, "BLD,DR->BLR", "BLR,RHE->BHLE", q)
        k = adapted("k", y, "BLD,DR->BLR", "BLR,RKE->BKLE", k)
        v = adapted("v", y, "BLD,DR->BLR", "BLR,RKE->BKLE", v)
        if c.qk_norm:
            q, k = norm("q_norm", E, q), norm("k_norm", E, k)
        q, k = rope(q, *turns), rope(k, *turns)
        if cache is not None:
            cache = Cache(
                k=write(cache.k, layer, slots, k), v=write(cache.v, layer, slots, v)
            )
            k, v = cache.k[layer], cache.v[layer]
        y = attend(q, k, v, mask, c.attention)
        o = weight("o", (H, E, D), ("heads", "head_dim", "embed"), residual=True)
        o = jnp.einsum("BHLE,HED->BLD", y, o)
        x = x + adapted("o", y, "BHLE,HER->BLR", "BLR,RD->BLD", o)

        # Rows and places as one dimension: on CPU the gradient is four times as fast.
        y = norm("mlp_norm", D, x).reshape(-1, D)
        gate = y @ weight("gate", (D, F), ("embed", "mlp"))
        gate = adapted("gate", y, "ND,DR->NR", "NR,RF->NF", gate)
        up = y @ weight("up", (D, F), ("embed", "mlp"))
        up = adapted("up", y, "ND,DR->NR", "NR,RF->NF", up)
        down = weight("down", (F, D), ("mlp", "embed"), residual=True)
        y = nn.silu(gate) * up
        y = adapted("down", y, "NF,FR->NR", "NR,RD->ND", y @ down)
        x = x + y.reshape(x.shape)
        return (constrain(x, ("batch", "length", None)), cache), None


class Decoder(nn.Module):
    """Embedding, scanned layers, final norm. Declares `head`; callers multiply by it,
    in chunks where [L, V] would not fit.
    """

    config: Config

    @nn.compact
    def __call__(self, tokens, positions, mask, cache=None, slots=None):
        c = self.config
        table = ((c.vocab_size, c.width), ("vocab", "embed"), _normal(c))
        embed = _param(self, "embed", *table)
        if not c.tie_embeddings:
            _param(self, "head", *table)
        x = constrain(embed[tokens].astype(c.dtype), ("batch", "length", None))
        block = Block
        if c.remat != "none" and cache is None:
            # The scan already keeps the recomputation apart; no need to forbid CSE.
            block = nn.remat(Block, policy=REMAT[c.remat], prevent_cse=False)
        layers = nn.scan(
            block,
            variable_axes={"params": 0, "lora": 0, narrow.KEY: 0},
            split_rngs={"params": True},
            in_axes=(*(nn.broadcast,) * 4, 0),
            length=c.layers,
            unroll=c.unroll,
            metadata_params={nn.PARTITION_NAME: "layers"},
        )(c, name="layers")
        turns = angles(positions, c.head_dim, c.rope_theta, c.rope_scaling)
        one = narrow.unit(positions)
        index = jnp.arange(c.layers, dtype=jnp.int32)
        (x, cache), _ = layers((x, cache), turns, mask, slots, one, index)
        scale = _param(self, "norm", (c.width,), ("norm",), nn.initializers.ones)
        return _rms(x, scale, c.rms_eps), cache
