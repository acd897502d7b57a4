"""Would training work here? Facts of every rank (facts, probe, ranks), pure checks of them (checks), one report."""
