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
    Mutant(
        "the-policy-that-acted-is-forgotten-at-a-resume",
        "ddrl/sampling/rollout_schedules.py",
        "        if not self.saves_target or self.target is None:",
        "        if self.target is None or True:",
        ("tests/sampling/test_rollout_schedules.py::test_the_target_is_what_acted_also_after_a_resume",),
        "A loss that reads the policy that acted fails in a run that goes on in the middle of a rollout.",
    ),
    Mutant(
        "hts-rl-gives-the-newest-parameters-for-those-that-acted",
        "ddrl/sampling/rollout_schedules.py",
        "        self.target = behaviour\n",
        "        self.target = snapshot\n",
        ("tests/sampling/test_rollout_schedules.py::test_the_target_is_what_acted_also_after_a_resume",),
        "V-MPO's trust region is around another policy than the one that acted.",
    ),
    Mutant(
        "scalars-of-an-algorithm-begin-at-zero-beside-keras",
        "ddrl/networks/keras_network.py",
        "        whole = super().initial_parameters(seed)",
        "        whole = np.zeros(self.size, np.float32)",
        ("tests/networks/test_scalars.py::test_scalars_are_beside_any_network",),
        "An algorithm's multipliers begin elsewhere with a network of a user.",
    ),
    Mutant(
        "help-leaves-out-what-can-be-used",
        "ddrl/train_help.py",
        "_data(FromRollouts, FromUnrolls)",
        "_data(FromUnrolls)",
        ("tests/test_train_help.py::test_what_help_leaves_out_is_refused",),
        "A reader of `ddrl train ppo --help-all` learns that --predictors is not for PPO.",
    ),
    Mutant(
        "a-network-that-was-named-is-replaced",
        "ddrl/options.py",
        'if arguments.resume or "network" in given:',
        "if arguments.resume:",
        ("tests/test_game_settings.py::test_a_network_that_was_named_stays",),
        "A user's choice of a network is overruled instead of refused.",
    ),
    Mutant(
        "advice-is-to-resume-what-has-no-checkpoint",
        "ddrl/named_runs.py",
        "        begun = bool(list_checkpoints(run_dir)) or not Path(run_dir).is_dir()",
        "        begun = True",
        ("tests/test_named_runs.py::test_advice_works_with_and_without_a_checkpoint",),
        "After a kill before the first checkpoint a user is told a command that is refused.",
    ),
)
