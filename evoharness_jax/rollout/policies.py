"""Policies: what answers a prompt. A model, a teacher, or chance.

A policy is `act`, a function from the requests of one tick to responses, in order; the
loop does everything else, so that collection, training and evaluation differ in this
argument only. One that can answer some while others wait has `put` and `take` too.
"""

import random
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from evoharness_jax.envs import actions
from evoharness_jax.envs.domain import Sight
from evoharness_jax.models import tokens as tokens_
from evoharness_jax.models.tokens import Tokens
from evoharness_jax.rollout import slots
from evoharness_jax.rollout.slots import Rows


class Request(NamedTuple):
    """One live episode that waits for a response."""

    row: int  # its place in the batch, the same for the whole episode
    uid: int  # unique in the run
    turn: int
    prompt: list[int]  # ids of the whole context; [] without a tokenizer
    head: int  # of them, those that the whole episode begins with
    sight: Sight


class Response(NamedTuple):
    """What a policy answers. Without `ids` the loop encodes the text."""

    text: str
    ids: list[int] | None = None
    logp: np.ndarray | None = None  # f32[len(ids)]
    raw_logp: np.ndarray | None = None  # f32[len(ids)]
    label: str | None = None  # what it should have answered, where that differs


class Policy(NamedTuple):
    name: str
    act: Callable[[list[Request]], list[Response]]
    version: int = 0  # updates that its weights have seen
    # Hand requests over, whatever still waits; get those that are answered, at least
    # one of those that wait. None: `act` answers all at once.
    put: Callable[[list[Request]], None] | None = None
    take: Callable[[], list[tuple[Request, Response]]] | None = None


def wrapped(policy: Policy, around: Callable[[Callable], Callable]) -> Policy:
    """Return the policy whose every call goes through `around`."""
    calls = {"act": policy.act, "put": policy.put, "take": policy.take}
    return policy._replace(**{n: around(call) for n, call in calls.items() if call})


def teacher(decide, clean=None, think: bool = False) -> Policy:
    """Return the policy of a domain's teacher.

    Args:
        decide: Sight -> (thought, action).
        clean: the same without noise; what it decides is the label to learn from
            where `decide` errs on purpose.
        think: write the thought too.
    """

    def write(decision):
        thought, action = decision
        return actions.write(action, thought if think else "")

    def act(requests):
        responses = []
        for request in requests:
            text = write(decide(request.sight))
            label = write(clean(request.sight)) if clean else text
            responses.append(Response(text, label=label))
        return responses

    return Policy("teacher", act)


def corrected(student: Policy, master: Policy, share: float, seed: int) -> Policy:
    """Return the policy in which a student plays and a teacher says what was right.

    The states are those that the student gets itself into, the labels the teacher's
    (DAgger, arXiv 1011.0686). Where the teacher acts instead, it acts as it labels.

    Args:
        share: of the turns that the student takes, 0 to 1.
        seed: with episode and turn, it names who takes a turn.
    """

    def act(requests):
        right = master.act(requests)
        draws = [random.Random(f"{seed}/{r.uid}/{r.turn}").random() for r in requests]
        asked = [r for r, draw in zip(requests, draws) if draw < share]
        said = iter(student.act(asked) if asked else [])
        return [
            next(said)._replace(label=wanted.text) if draw < share else wanted
            for draw, wanted in zip(draws, right)
        ]

    return Policy(f"{student.name}, corrected by {master.name}", act, student.version)


def random_choice(seed: int) -> Policy:
    """Return the policy that takes any command the environment accepts."""

    def act(requests):
        responses = []
        for request in requests:
            draw = random.Random(f"{seed}/{request.uid}/{request.turn}")
            commands = request.sight.commands or ("",)
            responses.append(Response(actions.write(draw.choice(commands))))
        return responses

    return Policy("random", act)


def scripted(script: list[str]) -> Policy:
    """Return the policy that plays the same actions in every episode."""

    def act(requests):
        last = len(script) - 1
        return [Response(actions.write(script[min(r.turn, last)])) for r in requests]

    return Policy("scripted", act)


def model(
    tokens: Tokens,
    params,
    run_key,
    rows: Rows,
    version: int = 0,
    wait: float = 1.0,
    ahead: int = 0,
) -> Policy:
    """Return the policy that samples from a model.

    Args:
        rows: KV to work in; it is forgotten first, as the weights may be new.
        wait, ahead: see `slots.take`.
    """
    rows.forget()
    asked: dict[int, Request] = {}

    def put(requests):
        asked.update({r.row: r for r in requests})
        slots.put(rows, params, [_asked(r) for r in requests])

    def take():
        said = slots.take(rows, params, run_key, wait, ahead)
        return [(asked.pop(row), _response(tokens, s)) for row, s in said.items()]

    def act(requests):
        said = slots.answer(rows, params, run_key, [_asked(r) for r in requests])
        return [_response(tokens, said[r.row]) for r in requests]

    return Policy("model", act, version, put, take)


def _asked(request: Request) -> slots.Asked:
    r = request
    return slots.Asked(r.row, r.prompt, r.uid, r.turn, r.head)


def _response(tokens: Tokens, said: slots.Sampled) -> Response:
    return Response(
        tokens_.decode(tokens, said.ids), said.ids, said.logp, said.raw_logp
    )
