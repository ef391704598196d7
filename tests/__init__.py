"""Tests of pytest-core-rollouts; they mirror the package."""
