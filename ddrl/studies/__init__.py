"""Experiments of the papers: many runs that differ in a few settings, a table and a figure of them all."""
