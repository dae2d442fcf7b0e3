"""Losses over packed rows, [W, L], as sums divided by a count handed in.

The count is the weight of the WHOLE batch, over every microbatch and device: then the
losses, gradients and metrics of microbatches add up to those of the batch, and how
rows were packed changes nothing. Tokens of weight 0 take no part, whatever the arrays
hold there.

    ratio  = exp(logp - old)
    policy = max(-A ratio, -A clip(ratio, 1 - low, 1 + high))
             and where A < 0 at most -A dual            (arXiv 1707.06347, 1912.09729)
    k1 = d,   k2 = d^2 / 2,   k3 = exp(-d) - 1 + d      with d = logp - ref

All three estimate KL(policy || reference) as values. As a loss over samples of the
policy, the gradient of k1 is zero in expectation, that of k2 is the gradient of
KL(policy || reference), and that of k3 is the gradient of KL(reference || policy).
"""

import jax
import jax.numpy as jnp

KL_KINDS = ("k1", "k2", "k3")
LOG_RATIO_BOUND = 20.0  # beyond it a ratio is a number to report, not to trust


def sft(logp, weight, count=None):
    """Give the mean negative log-likelihood of the weighted tokens.

    Args:
        logp: f32[W, L] of each token given what stands before it.
        weight: f32[W, L].
        count: f32[] weight of the whole batch; None: of these rows.

    Returns:
        (loss f32[], metrics).
    """
    loss = -_mean(logp, weight, count)
    return loss, {"loss/sft": loss}


def policy_gradient(
    logp,
    old_logp,
    ref_logp,
    advantage,
    weight,
    count=None,
    *,
    entropy=None,
    sampler_logp=None,
    clip_low=0.2,
    clip_high=0.28,
    dual_clip=3.0,
    kl_kind="k2",
    kl_coef=0.01,
    entropy_coef=0.001,
    importance_cap=None,
):
    """Give the clipped policy-gradient loss, with KL and entropy terms.

    Args:
        logp: f32[W, L] under the parameters that are differentiated.
        old_logp: f32[W, L] before the first update on this rollout; None: as `logp`
            now, which is the same at that first update and saves a scoring pass.
        ref_logp: f32[W, L] under the reference; not read where kl_coef is 0.
        advantage: f32[W, L].
        weight: f32[W, L].
        count: f32[] weight of the whole batch; None: of these rows.
        entropy: f32[W, L] nats per token; needed where entropy_coef is not 0.
        sampler_logp: f32[W, L] as the sampler reported them.
        clip_low, clip_high: how far the ratio may fall below and rise above 1.
        dual_clip: bound on the ratio where the advantage is negative; None: none.
        kl_kind: "k1", "k2" or "k3".
        kl_coef: weight of the KL term.
        entropy_coef: weight of the entropy bonus.
        importance_cap: weigh each token by exp(old - sampler), at most this, for a
            sampler whose arithmetic differs from the trainer's; None: do not.

    Returns:
        (loss f32[], metrics): loss/policy, loss/kl, loss/entropy are its terms;
        policy/ratio, policy/clip_fraction, policy/kl (k3), policy/entropy and
        policy/sampler_gap (mean |old - sampler|, nats) are means over weight.
    """
    if kl_kind not in KL_KINDS:
        raise ValueError(f"kl_kind: {kl_kind}, not {KL_KINDS}")
    if entropy_coef and entropy is None:
        raise ValueError(f"{entropy_coef=} wants the entropy")
    if importance_cap is not None and sampler_logp is None:
        raise ValueError(f"{importance_cap=} wants the sampler's log-probabilities")

    def mean(x):
        return _mean(x, weight, count)

    def difference(a, b):  # of log-probabilities; 0 where nothing is weighed
        return jnp.where(weight > 0, a - b, 0.0)

    def exp(x):
        return jnp.exp(jnp.clip(x, -LOG_RATIO_BOUND, LOG_RATIO_BOUND))

    if old_logp is None:
        old_logp = jax.lax.stop_gradient(logp)
    ratio = exp(difference(logp, old_logp))
    clipped = jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    objective = jnp.minimum(advantage * ratio, advantage * clipped)
    if dual_clip is not None:
        bounded = jnp.maximum(objective, advantage * dual_clip)
        objective = jnp.where(advantage < 0, bounded, objective)
    binds = jnp.where(advantage < 0, ratio < 1.0 - clip_low, ratio > 1.0 + clip_high)
    metrics = {
        "policy/ratio": mean(ratio),
        "policy/clip_fraction": mean(binds & (advantage != 0)),
    }
    if sampler_logp is not None:
        gap = difference(old_logp, sampler_logp)
        metrics["policy/sampler_gap"] = mean(jnp.abs(gap))
        if importance_cap is not None:
            objective = objective * jnp.minimum(exp(gap), importance_cap)
    loss = metrics["loss/policy"] = -mean(objective)
    if kl_coef:
        d = difference(logp, ref_logp)
        k3 = exp(-d) - 1.0 + d
        kl = {"k1": d, "k2": 0.5 * d**2, "k3": k3}[kl_kind]
        metrics["policy/kl"] = mean(k3)
        metrics["loss/kl"] = kl_coef * mean(kl)
        loss = loss + metrics["loss/kl"]
    if entropy is not None:
        metrics["policy/entropy"] = mean(entropy)
        metrics["loss/entropy"] = jnp.zeros((), jnp.float32)
        if entropy_coef:  # without it the backward pass skips the entropy
            metrics["loss/entropy"] = -entropy_coef * metrics["policy/entropy"]
            loss = loss + metrics["loss/entropy"]
    return loss, jax.lax.stop_gradient(metrics)


def _mean(x, weight, count):
    weight = weight.astype(jnp.float32)
    count = jnp.sum(weight) if count is None else count
    weighed = jnp.where(weight > 0, x.astype(jnp.float32) * weight, 0.0)
    return jnp.sum(weighed) / jnp.where(count > 0, count, 1.0)
