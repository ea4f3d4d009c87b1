"""The demonstration: a scripted model over real files, with the real agent, ledger, gate and tools."""
