"""Figures about texts."""
