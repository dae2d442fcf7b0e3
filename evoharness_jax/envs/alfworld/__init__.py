"""ALFWorld's household games: their engines, their words and a teacher.

from evoharness_jax.envs import alfworld

game = alfworld.load("game.tw-pddl")
state, observation = alfworld.reset(game)
state, observation = alfworld.step(game, state, "go to desk 1")
"""

from importlib import import_module

# Looked up when asked for: a simulator process imports this package, and not JAX.
_HOMES = {"load": "game", "Game": "game", "reset": "engine", "step": "engine"}


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
