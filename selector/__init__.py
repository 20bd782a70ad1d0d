"""Launching, trials, search, judgement, plans, recommendation."""
