"""Hostile agents as data: one table for each kind of trick. Each table is one run, together with honest rollouts.

A new agent is one entry. It says what the agent does and what its row must say; how it is run stands in `runs`.
"""
