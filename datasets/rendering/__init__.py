"""Renders excerpts of music for eleven instruments: what is played, on what sounds, in which room.

`bppsa_lightning.datasets.render_instruments` is the command.
"""
