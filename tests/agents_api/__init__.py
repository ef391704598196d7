"""Tests of the Agents API client, over real HTTP."""
