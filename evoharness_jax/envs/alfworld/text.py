"""Words out: a game's grammar, said about a state.

Of a rule's alternatives the first is said whose condition has an answer. Lists give
the answers of a query in the order of their ids, as TextWorld sorts its facts. All of
it is host code on numpy leaves.
"""

from collections.abc import Iterator

import numpy as np

from evoharness_jax.envs.alfworld.grammar import FLAGS
from evoharness_jax.types import NONE


def say(game, state, parts: list, bound: dict[str, int]) -> str:
    """Say `parts` about a state; `bound` gives what the variables stand for."""
    return _say(game, state, parts, bound)


def intro(game, state) -> str:
    """Say the banner, the room and the task, as the first observation does."""
    return _say(game, state, [["rule", "intro"]], {})


# The facts of a state as bool arrays, one axis a column.
_FACTS = {
    "inreceptacle": lambda game, state: state.inside,
    "not_inreceptacle": lambda game, state: _bits(state.left, state.inside.shape[1]),
    "objectatlocation": lambda game, state: _bits(state.near, _spots(game)),
    "opened": lambda game, state: state.opened,
    "openable": lambda game, state: game.tables.openable,
    "holdsany": lambda game, state: np.array([state.held != NONE]),
    "holds": lambda game, state: _one(state.inside.shape[0], state.held)[None],
    "atlocation": lambda game, state: _one(_spots(game), state.agent)[None],
    "receptacleatlocation": lambda game, state: (
        game.tables.spot[:, None] == np.arange(_spots(game))
    ),
    # no action ever switches a thing off
    "not_istoggled": lambda game, state: np.zeros(state.inside.shape[0], bool),
    **{
        flag: lambda game, state, column=i: state.flags[:, column]
        for i, flag in enumerate(FLAGS)
    },
}


def _spots(game) -> int:
    return len(game.names["location"])


def _one(size, index) -> np.ndarray:
    return np.arange(size) == index


def _bits(packed, count) -> np.ndarray:
    return np.unpackbits(packed, axis=1, count=count).view(bool)


def _fact(game, state, name: str) -> np.ndarray:
    return _FACTS[name](game, state) if name in _FACTS else game.static[name]


def _answers(game, state, query: list, bound: dict[str, int]) -> Iterator[dict]:
    """Give every way to fill the free variables of `query`, in the order of ids."""
    if not query:
        yield bound
        return
    name, variables = query[0]
    where = tuple([bound.get(variable, slice(None)) for variable in variables])
    array = _fact(game, state, name)[where]
    free = [variable for variable in variables if variable not in bound]
    if not free:
        if array:
            yield from _answers(game, state, query[1:], bound)
        return
    for found in np.argwhere(array).tolist():
        yield from _answers(game, state, query[1:], {**bound, **dict(zip(free, found))})


def _say(game, state, parts, bound) -> str:
    said = []
    for part in parts:
        kind = part[0]
        if kind == "text":
            said.append(part[1])
        elif kind == "name":
            said.append(game.names[game.grammar.types[part[1]]][bound[part[1]]])
        elif kind == "goal":
            said.append(game.task)
        elif kind == "rule":
            chosen = _choose(game, state, game.grammar.rules[part[1]], bound)
            said.append(_say(game, state, chosen, bound))
        else:
            said.append(_list(game, state, part[1], part[2], bound))
    return "".join(said)


def _choose(game, state, alternatives, bound) -> list:
    for condition, parts in alternatives:
        if _holds(game, state, condition, bound):
            return parts
    return []


def _holds(game, state, query, bound) -> bool:
    for at, (name, variables) in enumerate(query):
        for variable in variables:
            if variable not in bound:
                answers = _answers(game, state, query[at:], bound)
                return next(answers, None) is not None
        where = tuple([bound[variable] for variable in variables])
        if not _fact(game, state, name)[where]:
            return False
    return True


def _list(game, state, item, query, bound) -> str:
    found = _named(game, state, item, query, bound)
    if found is None:
        answers = _answers(game, state, query, bound)
        found = [_say(game, state, item, answer) for answer in answers]
    empty, separator, last = game.grammar.listing
    if len(found) < 2:
        return found[0] if found else empty
    return separator.join(found[:-1]) + last + found[-1]


def _named(game, state, item, query, bound) -> list[str] | None:
    """Do the common case fast: [["text", ...], ["name", v]], v alone is free."""
    if len(query) != 1 or len(item) > 2 or item[-1][0] != "name":
        return None
    name, variables = query[0]
    variable = item[-1][1]
    if sum(v not in bound for v in variables) != 1 or variable in bound:
        return None
    before = item[0][1] if len(item) == 2 else ""
    where = tuple([bound.get(v, slice(None)) for v in variables])
    names = game.names[game.grammar.types[variable]]
    found = _fact(game, state, name)[where].nonzero()[0].tolist()
    return [before + names[i] for i in found]
