"""Results used again: a run that goes on where it ended, answers graded anew."""
