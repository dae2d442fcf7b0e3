import jax.numpy as jnp
import numpy as np
import pytest

from evoharness_jax.train import optim


def rates(schedule, steps):
    return [float(schedule(i)) for i in steps]


def test_constant():
    assert rates(optim.constant(2.0), (0, 9)) == [2.0, 2.0]
    # rises over four updates: 1/4, 2/4, 3/4, 4/4 of the peak
    got = rates(optim.constant(2.0, warmup=4), range(6))
    assert got == pytest.approx([0.5, 1, 1.5, 2, 2, 2])


def test_cosine():
    # up over 2, down over 8 from update 2: half way (update 6) the mean of 1 and .2
    schedule = optim.cosine(1.0, steps=10, warmup=2, end=0.2)
    assert rates(schedule, (0, 1, 2, 6, 10, 50)) == pytest.approx(
        [0.5, 1, 1, 0.6, 0.2, 0.2]
    )
    with pytest.raises(ValueError, match="warmup"):
        optim.cosine(1.0, steps=5, warmup=5)


def test_only_matrices_decay():
    params = {
        "embed": jnp.ones((4, 2)),
        "block": {"q": jnp.ones((3, 2, 2)), "q_norm": jnp.ones((3, 2))},
        "norm": jnp.ones(2),
        "bias": jnp.ones((3, 2)),
    }
    assert optim.decayed(params) == {
        "embed": True,
        "block": {"q": True, "q_norm": False},
        "norm": False,
        "bias": False,
    }


def test_first_step_by_hand():
    # Adam's first step is the rate times the gradient's sign; decay adds rate x .1 x p
    # to the matrix. The norm 5 of the gradient is clipped first, which changes no sign.
    params = {"w": jnp.full((1, 2), 2.0), "b": jnp.full(1, 2.0)}
    grads = {"w": jnp.array([[3.0, -4.0]]), "b": jnp.zeros(1)}
    tx = optim.make(0.5, weight_decay=0.1, clip_norm=1.0)
    updates, _ = tx.update(grads, tx.init(params), params)
    np.testing.assert_allclose(updates["w"], [[-0.6, 0.4]], rtol=1e-5)
    np.testing.assert_allclose(updates["b"], [0.0])


def test_dtype_of_the_first_moment():
    tx = optim.make(1e-3, mu_dtype=jnp.bfloat16)
    adam = tx.init({"w": jnp.ones((2, 2))})[1][0]
    assert adam.mu["w"].dtype == jnp.bfloat16 and adam.nu["w"].dtype == jnp.float32
