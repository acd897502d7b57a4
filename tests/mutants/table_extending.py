"""Plugins and networks of users; the residual network."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "simulator-processes-have-no-plugins",
        "ddrl/envs/simulator_process.py",
        '        plugins.load(settings["plugins"])\n',
        "",
        ("tests/parallel/test_plugins.py::test_every_process_of_a_run_imports_its_plugins",),
        "A process of simulators does not know a user's environments and wrappers.",
    ),
    Mutant(
        "a-plugin-that-fails-leaves-its-names",
        "ddrl/plugins.py",
        "        REGISTRIES[number].remove(name)",
        "        pass",
        ("tests/test_plugins.py::test_what_is_no_plugin_is_refused_in_one_line",),
        "A plugin that was mended cannot be loaded again in a notebook: its names are taken.",
    ),
    Mutant(
        "keras-draws-without-the-seed",
        "ddrl/networks/keras_network.py",
        "        with seeded(seed):",
        "        with seeded(0):",
        ("tests/networks/test_keras_network.py::test_parameters_are_a_function_of_the_seed_whatever_was_made_before",),
        "Runs of all seeds begin with the same parameters.",
    ),
    Mutant(
        "a-residual-block-forgets-its-input",
        "ddrl/networks/residual.py",
        '                x += _convolved(prepared, f"{name}/conv1"',
        '                x = _convolved(prepared, f"{name}/conv1"',
        ("tests/networks/test_residual.py::test_the_residual_network_is_that_of_the_paper",),
        "The network is a plain one of fifteen convolutions.",
    ),
)
