"""Losses over packed rows, [W, L], as sums divided by a count handed in.

The count is the weight of the WHOLE batch, over every microbatch and device: then the
losses, gradients and metrics of microbatches add up to those of the batch, and how
rows were packed changes nothing. Tokens of weight 0 take no part, whatever the arrays
hold there.

    loss = -mean(min(exp(old - sampler), cap) objective)      `objectives`, by name
           + kl_coef mean(k) - entropy_coef mean(entropy)
    k1 = d,   k2 = d^2 / 2,   k3 = exp(-d) - 1 + d            with d = logp - ref

All three estimate KL(policy || reference) as values. As a loss over samples of the
policy, the gradient of k1 is zero in expectation, that of k2 is the gradient of
KL(policy || reference), and that of k3 is the gradient of KL(reference || policy).
In the REWARD it is k1 that gives the gradient of KL(policy || reference): there the
score function multiplies it.

The truncated importance weight (Ionides 2008; arXiv 1802.01561) makes up for a sampler
whose arithmetic, or whose parameters, differ from the trainer's. It is a number, each
token's own, and not differentiated.
"""

import jax
import jax.numpy as jnp

from evoharness_jax.train.objectives import OBJECTIVES, Limits, ratio_of

KL_KINDS = ("k1", "k2", "k3")


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
    segments=None,
    objective="clip",
    clip_low=0.2,
    clip_high=0.28,
    dual_clip=3.0,
    kl_kind="k2",
    kl_coef=0.01,
    entropy_coef=0.001,
    sampler_cap=0.0,
    constant=None,
):
    """Give the policy-gradient loss, with KL and entropy terms.

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
        segments: int32[W, L] ids of the segments of a row; needed by "gspo".
        objective: a key of `objectives.OBJECTIVES`.
        clip_low, clip_high: how far the ratio may fall below and rise above 1.
        dual_clip: bound on the ratio where the advantage is negative, for "clip";
            None: none.
        kl_kind: "k1", "k2" or "k3".
        kl_coef: weight of the KL term.
        entropy_coef: weight of the entropy bonus.
        sampler_cap: weigh each token by exp(old - sampler), at most this; 0: do not.
        constant: f32[] what the terms of the loss are divided by in place of `count`,
            which the other metrics keep (Dr. GRPO, arXiv 2503.20783); None: `count`.

    Returns:
        (loss f32[], metrics): loss/policy, loss/kl, loss/entropy are its terms;
        policy/ratio, policy/clip_fraction, policy/kl (k3), policy/entropy,
        policy/sampler_gap (mean |old - sampler|, nats) and, where it is on,
        policy/sampler_weight are means over weight.
    """
    known(kl_kind, "kl_kind", KL_KINDS)
    known(objective, "objective", OBJECTIVES)
    if entropy_coef and entropy is None:
        raise ValueError(f"{entropy_coef=} wants the entropy")
    if sampler_cap and sampler_logp is None:
        raise ValueError(f"{sampler_cap=} wants the sampler's log-probabilities")

    def mean(x):
        return _mean(x, weight, count)

    def difference(a, b):  # of log-probabilities; 0 where nothing is weighed
        return jnp.where(weight > 0, a - b, 0.0)

    def term(x):  # of the loss
        return _mean(x, weight, count if constant is None else constant)

    if old_logp is None:
        old_logp = jax.lax.stop_gradient(logp)
    limits = Limits(clip_low, clip_high, dual_clip)
    log_ratio = difference(logp, old_logp)
    worth, ratio, clipped = OBJECTIVES[objective](
        log_ratio, advantage, weight, segments, limits
    )
    metrics = {
        "policy/ratio": mean(ratio),
        "policy/clip_fraction": mean(clipped),
    }
    if sampler_logp is not None:
        gap = difference(old_logp, sampler_logp)
        metrics["policy/sampler_gap"] = mean(jnp.abs(gap))
        if sampler_cap:
            kept = jnp.minimum(jax.lax.stop_gradient(ratio_of(gap)), sampler_cap)
            metrics["policy/sampler_weight"] = mean(kept)
            worth = worth * kept
    loss = metrics["loss/policy"] = -term(worth)
    if kl_coef:
        d = difference(logp, ref_logp)
        k3 = ratio_of(-d) - 1.0 + d
        kl = {"k1": d, "k2": 0.5 * d**2, "k3": k3}[kl_kind]
        metrics["policy/kl"] = mean(k3)
        metrics["loss/kl"] = kl_coef * term(kl)
        loss = loss + metrics["loss/kl"]
    if entropy is not None:
        metrics["policy/entropy"] = mean(entropy)
        metrics["loss/entropy"] = jnp.zeros((), jnp.float32)
        if entropy_coef:  # without it the backward pass skips the entropy
            metrics["loss/entropy"] = -entropy_coef * term(entropy)
            loss = loss + metrics["loss/entropy"]
    return loss, jax.lax.stop_gradient(metrics)


def _mean(x, weight, count):
    weight = weight.astype(jnp.float32)
    count = jnp.sum(weight) if count is None else count
    weighed = jnp.where(weight > 0, x.astype(jnp.float32) * weight, 0.0)
    return jnp.sum(weighed) / jnp.where(count > 0, count, 1.0)


def known(value, name: str, choices) -> None:
    """Raise ValueError, naming the config key, where a choice is unknown."""
    if value not in choices:
        raise ValueError(f"loss.{name}: {value!r}, not one of {', '.join(choices)}")
