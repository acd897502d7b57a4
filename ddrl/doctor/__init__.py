"""Would training work here? Facts of every rank (facts, probe, talk), pure checks of them (checks), one report."""
