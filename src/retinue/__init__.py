"""Retinue: subagents that can be trusted."""
