"""Task folders, and tasks made in code, as pytest nodes."""
