"""Experience replay: transitions of the simulators, each frame once, drawn uniformly or by priority. NumPy only."""
