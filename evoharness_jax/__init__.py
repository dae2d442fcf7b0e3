"""Agents that manage their own workspace, trained in JAX to do it when it pays.

An agent works through a long task in a text environment. Beside the environment's
actions it has four meta-actions on a workspace H = (B, P, E): `track` asks Belief,
`commit` writes Progress, `recall` reads Experience and `note` adds to it. They never
touch the environment, and they cost steps and tokens.

    types        the dimension legend, and the pytrees that cross packages
    bpe          the workspace: pure array functions for one episode, vmapped
    envs         the adapter contract, the response grammar, counter, ALFWorld
    models       the decoder, its weights, tokens and adapters
    rollout      generation, and the one loop that plays episodes
    train        supervised fine-tuning and the policy gradient
    experience   the bank between episodes: versions, evidence, edits
    mesh  parameters  checkpoint  metrics  judging
    collect  train_sft  train_rl  evaluate  report  export    entry points
    page         a run as one HTML file
    bench        measurements beside other implementations, one JSON line each

Imports point one way, and tests/test_layers.py keeps it so:

    entry points -> train, rollout, experience -> envs -> bpe -> types
                    train, rollout -> models -> mesh, types

Words stay in a `Lexicon` and arrays hold ids into it, so that an episode is a value:
`scan(step, start, events)` rebuilds any state of it. Importing this package starts
nothing: no device, no thread, no process.
"""

__version__ = "0.1.0"
