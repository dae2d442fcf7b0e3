"""The workspace H = (B, P, E): pure array functions for one episode.

`belief`, `progress` and `experience` hold one part each, `workspace` dispatches an
event to them, `episode` counts turns and ends. `lexicon` (words -> arrays) and
`views` (arrays -> words) are the only modules that see text, and do not import JAX.
"""
