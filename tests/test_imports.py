"""Imports point downward only: the layers of the package, read from its source."""

from __future__ import annotations

import ast
import configparser
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddrl import algorithms
from ddrl.exchange import registry

ROOT = Path(__file__).parent.parent
HEAVY = {"tensorflow", "mpi4py", "numba", "ale_py", "gymnasium", "matplotlib", "cv2", "imageio_ffmpeg"}
# What a layer may import of this project; every layer may import itself and what all share.
SHARED = {
    "ddrl.types",
    "ddrl.errors",
    "ddrl.checks",
    "ddrl.files",
    "ddrl.lazy",
    "ddrl.plugin_modules",
    "ddrl.plugins",
    "ddrl.programs",
    "ddrl.rom_names",
    "ddrl.structured",
    "ddrl.wording",
}
LAYERS = {
    "ddrl.ops": set(),
    "ddrl.config": {"ddrl.exchange.settings", "ddrl.replay.settings"},
    "ddrl.algorithms": {"ddrl.ops", "ddrl.config", "ddrl.networks"},
    "ddrl.exchange": {"ddrl.kernels"},
    "ddrl.kernels": set(),
    "ddrl.networks": {"ddrl.ops", "ddrl.config", "ddrl.exchange.statistics"},
    "ddrl.envs": {"ddrl.config"},
    "ddrl.replay": {"ddrl.kernels"},
    "ddrl.simulation": set(),
    "ddrl.sampling": {
        "ddrl.ops",
        "ddrl.config",
        "ddrl.envs",
        "ddrl.exchange.statistics",
        "ddrl.networks",
        "ddrl.replay",
        "ddrl.reporting.rank_metrics",
    },
    "ddrl.job": {
        "cluster.roles",
        "ddrl.config",
        "ddrl.exchange.messages",
        "ddrl.exchange.transport",
        "ddrl.reporting.rank_metrics",
        "ddrl.rundir",
    },
    "ddrl.builders": {
        "ddrl.algorithms",
        "ddrl.config",
        "ddrl.envs",
        "ddrl.exchange.learning_rates",
        "ddrl.kept_checkpoints",
        "ddrl.learner",
        "ddrl.networks",
        "ddrl.ops",
        "ddrl.placement.ranks",
        "ddrl.replay",
        "ddrl.replay_files",
        "ddrl.reporting.rank_metrics",
        "ddrl.sampling",
        "ddrl.targets",
    },
    "cluster": set(),
}
MAY_IMPORT_CLUSTER = (
    "cluster", "ddrl.apex", "ddrl.job", "ddrl.roles", "ddrl.cli", "ddrl.commands", "ddrl.options.train_options",
    "ddrl.placement", "ddrl.launch", "ddrl.doctor", "ddrl.bench", "ddrl.reporting.machine", "ddrl.api",
    "ddrl.options.game_settings", "ddrl.memory",
)  # fmt: skip
NAMED_FOR_TYPES = {"ddrl.config.settings", "ddrl.evaluation.agent", "ddrl.exchange.settings"}
"""Modules of classes that hand themselves to what they call: settings to their checks, an agent to its export. What
they call may name these classes, for types alone."""
ONLY_ROLES_ABOVE = ("ddrl.roles", "ddrl.bench", "ddrl.launch.job")
OF_OPTIONS = tuple(f"ddrl.options.{path.stem}" for path in sorted((ROOT / "ddrl" / "options").glob("[a-z]*.py")))
LIGHT = (
    *OF_OPTIONS,
    "ddrl.cli", "ddrl.commands.train", "ddrl.plugin_modules", "ddrl.rom_names", "ddrl.docstrings",
    "ddrl.named_runs", "ddrl.init_from", "ddrl.option_values", "ddrl.commands.compare", "ddrl.commands.diff",
    "ddrl.commands.tune", "ddrl.commands.evaluate", "ddrl.commands.play", "ddrl.commands.bench",
    "ddrl.commands.plan", "ddrl.commands.plugins", "ddrl.commands.doctor", "ddrl.config", "ddrl.algorithms",
    "ddrl.plugins", "ddrl.trial", "ddrl.networks", "ddrl", "ddrl.api.run", "ddrl.api.training",
    "ddrl.reporting.callbacks", "ddrl.reporting.loggers", "ddrl.evaluation.newest", "ddrl.commands.export",
    "ddrl.commands.board", "ddrl.board.board", "ddrl.board.server", "ddrl.algorithms.ppo",
    "ddrl.networks.convolutional", "ddrl.rundir", "ddrl.errors", "ddrl.types", "ddrl.checks", "ddrl.checkpoint",
    "ddrl.placement.resources", "ddrl.launch.local", "ddrl.launch.outcome", "ddrl.launch.processes",
    "ddrl.launch.job", "ddrl.placement.ranks", "ddrl.launch.finish", "ddrl.reporting.progress",
    "ddrl.reporting.plots", "ddrl.reporting.metrics", "ddrl.doctor.checks", "ddrl.doctor.facts",
    "ddrl.doctor.examination", "ddrl.doctor.probe", "ddrl.doctor.report", "ddrl.doctor.survey", "ddrl.doctor.watch",
    "ddrl.commands.study", "ddrl.studies.papers.apex.actors", "ddrl.studies.papers.apex.replay",
    "ddrl.studies.papers.ba3c.collapse", "ddrl.studies.papers.ba3c.communication",
    "ddrl.studies.papers.ba3c.epsilon", "ddrl.studies.papers.ba3c.games", "ddrl.studies.papers.ba3c.scaling",
    "ddrl.studies.papers.fast_dqn", "ddrl.studies.papers.hts", "ddrl.studies.papers.stooke.q_learning",
    "ddrl.studies.papers.stooke.sampling", "ddrl.studies.papers.stooke.simulators", "ddrl.studies.simulate",
    "ddrl.studies.collect", "ddrl.studies.engine", "ddrl.studies.figures", "ddrl.studies.slurm",
    "ddrl.studies.training", "ddrl.commands.submit", "ddrl.commands.status", "ddrl.commands.logs",
    "ddrl.slurm.runs", "ddrl.slurm.site", "ddrl.slurm.queue", "ddrl.slurm.records", "ddrl.slurm.script",
    "ddrl.slurm.submission", "ddrl.commands.slurm_job",
)  # fmt: skip


def test_type_checkers_read_the_annotations_of_both_packages():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    for package in ("ddrl", "cluster"):
        assert (ROOT / package / "py.typed").exists()
        assert "py.typed" in setup["options.package_data"][package].split()


def module_name(path: Path) -> str:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


MODULES = {module_name(path): path for package in ("ddrl", "cluster") for path in (ROOT / package).rglob("*.py")}


def imports(module: str, top_level_only: bool = False, for_types: bool = False) -> Iterator[str]:
    """Full names of what a module imports; those under TYPE_CHECKING only with `for_types`."""
    yield from _imports(source(module), top_level_only, for_types)


@functools.cache
def source(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text())


def _imports(node: ast.AST, top_level_only: bool, for_types: bool) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are absolute"
            yield from (qualified(child.module or "", alias.name) for alias in child.names)
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test) and not for_types:
            continue
        elif not (top_level_only and isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))):
            yield from _imports(child, top_level_only, for_types)


def qualified(module: str, name: str) -> str:
    """`from ddrl import config` imports ddrl.config; `from ddrl.config import X` imports ddrl.config."""
    return f"{module}.{name}" if f"{module}.{name}" in MODULES or module == "ddrl" else module


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def top(name: str) -> str:
    return name.split(".", maxsplit=1)[0]


def package(name: str) -> str:
    """The package of ddrl that a module is of, a module of ddrl itself, or another name's first part."""
    return ".".join(name.split(".")[:2]) if top(name) == "ddrl" else top(name)


def package_graph() -> dict[str, set[str]]:
    """Package -> those that its modules import, anywhere in their source, types too; itself left out."""
    graph: dict[str, set[str]] = {package(module): set() for module in MODULES}
    for module in MODULES:
        graph[package(module)] |= {package(name) for name in imports(module, for_types=True)}
    return {name: (used & graph.keys()) - {name} for name, used in graph.items()}


def module_graph(named_for_types: set[str] = NAMED_FOR_TYPES) -> dict[str, set[str]]:
    """Module -> those that it imports, anywhere in its source, types too; types of some modules and itself left out."""
    graph = {}
    for module in MODULES:
        used = {*imports(module)} | ({*imports(module, for_types=True)} - named_for_types)
        graph[module] = {name if name in MODULES else name.rpartition(".")[0] for name in used}
    # These two import by name what they register.
    graph["ddrl.algorithms"] |= {f"ddrl.algorithms.{name}" for name in algorithms.MODULES}
    graph["ddrl.exchange.registry"] |= {f"ddrl.exchange.{name}" for name in registry.NAMES}
    return {name: (used & graph.keys()) - {name} for name, used in graph.items()}


def cycles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """The largest sets of nodes of which each reaches all others."""
    above = {node: reachable(graph, node) for node in graph}
    groups = {frozenset(other for other in above[node] if node in above[other]) for node in graph}
    return groups - {frozenset()}


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    """Nodes that one comes to from `start` by at least one edge."""
    seen: set[str] = set()
    new = set(graph[start])
    while new:
        seen |= new
        new = set().union(*(graph[node] for node in new)) - seen
    return seen


def test_packages_depend_on_each_other_one_way():
    graph = package_graph()
    assert "ddrl.checks" in graph["ddrl.config"], "the graph is not empty"
    assert cycles(graph) == set()


def test_modules_depend_on_each_other_one_way():
    graph = module_graph()
    assert {"ddrl.plugins", "ddrl.reporting.callbacks"} <= graph["ddrl.reporting.loggers"], "the graph is not empty"
    assert "ddrl.config.settings" in graph["ddrl.config"], "a package is the module of its names"
    assert cycles(graph) == set()


def test_only_modules_that_would_close_a_cycle_are_named_for_types_alone():
    closed = cycles(module_graph(named_for_types=set()))
    assert {module for cycle in closed for module in cycle & NAMED_FOR_TYPES} == NAMED_FOR_TYPES


def test_cycles_are_found():
    graph = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"e"}, "e": {"d"}, "f": {"a"}, "g": set()}
    assert cycles(graph) == {frozenset("abc"), frozenset("de")}


def test_the_source_was_found():
    assert {"ddrl.cli", "ddrl.config.settings", "cluster.roles"} <= set(MODULES)
    assert "cluster.job" in set(imports("ddrl.cli"))
    assert "ddrl.checks" in set(imports("ddrl.config.settings"))


def test_every_package_says_what_is_in_it():
    packages = {module: path for module, path in MODULES.items() if path.name == "__init__.py"}
    assert {"cluster", "ddrl", "ddrl.exchange.allreduce"} <= packages.keys()
    assert [module for module, path in packages.items() if not ast.get_docstring(ast.parse(path.read_text()))] == []


@pytest.mark.parametrize("layer", LAYERS)
def test_layers_import_downward(layer):
    allowed = LAYERS[layer] | (SHARED if layer != "cluster" else set()) | {layer}
    wrong = [
        f"{module} imports {name}"
        for module in MODULES
        if within(module, layer)
        for name in imports(module)
        if top(name) in ("ddrl", "cluster") and not any(within(name, package) for package in allowed)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "layer, heavy",
    [
        ("cluster", HEAVY | {"numpy", "rich", "tyro"}),
        ("ddrl.ops", HEAVY - {"tensorflow"}),
        ("ddrl.replay", HEAVY),
        ("ddrl.kernels", HEAVY - {"numba"}),
        ("ddrl.simulation", HEAVY),
    ],
)
def test_third_parties_of_a_layer(layer, heavy):
    assert [(m, name) for m in MODULES if within(m, layer) for name in imports(m) if top(name) in heavy] == []


def test_kernels_call_none_of_another_file():
    """Numba compiles a kernel anew when its own file has changed, whatever has become of others."""
    allowed = {"ddrl.kernels.compiled"}
    users = [m for m in MODULES if within(m, "ddrl.kernels")]
    wrong = [(m, name) for m in users for name in imports(m) if within(name, "ddrl") and name not in allowed]
    assert len(users) > 2 and wrong == []
    tree = ast.parse(MODULES["ddrl.kernels.compiled"].read_text())
    assert not any(isinstance(node, ast.FunctionDef) and node.decorator_list for node in tree.body)


def test_only_the_exchange_knows_its_kinds_by_name():
    """Others ask the record: whether it has servers, is asynchronous, needs one host."""
    asks = ("exchange.exchange ==", "exchange.exchange !=", "exchange.exchange in")
    users = [(m, ask) for m, path in MODULES.items() for ask in asks if ask in path.read_text()]
    assert [(m, ask) for m, ask in users if not within(m, "ddrl.exchange")] == []


def test_the_exchange_needs_no_tensorflow_and_no_rl():
    wrong = {"tensorflow", "gymnasium", "ale_py"}
    assert [(m, n) for m in MODULES if within(m, "ddrl.exchange") for n in imports(m) if top(n) in wrong] == []


def test_only_roles_and_the_command_line_know_the_cluster():
    users = {m for m in MODULES for name in imports(m) if top(name) == "cluster"}
    assert [m for m in users if not any(within(m, allowed) for allowed in MAY_IMPORT_CLUSTER)] == []


def test_nothing_below_imports_roles():
    users = {m for m in MODULES for name in imports(m) if within(name, "ddrl.roles")}
    assert [m for m in users if not any(within(m, allowed) for allowed in ONLY_ROLES_ABOVE)] == []


@pytest.mark.parametrize("module", LIGHT)
def test_light_modules_import_nothing_heavy_at_once(module):
    assert [name for name in imports(module, top_level_only=True) if top(name) in HEAVY] == []


def test_nothing_is_pickled_and_no_shell_or_socket_opened():
    wrong = {"pickle", "cloudpickle", "dill", "shelve", "marshal", "socketserver", "joblib", "multiprocessing"}
    grpc = "ddrl.bench.emulated.tensorflow_grpc"  # whose processes on this machine pass each other a number
    assert [(m, name) for m in MODULES for name in imports(m) if top(name) in wrong] == [(grpc, "multiprocessing")]
    phrases = ("socket.socket", "create_connection", "shell=True", "os.system", "os.popen", "allow_pickle=True")
    found = [(m, p) for m, path in MODULES.items() for p in phrases if p in path.read_text()]
    # The benchmark of TensorFlow's own gRPC path must find ports for it, and mpirun's sockets are moved to the
    # loopback; ddrl itself opens none.
    expected = ["cluster.loopback", grpc]
    assert sorted(found) == [(module, "socket.socket") for module in expected]


ALGORITHM_NAMES = set(algorithms.ALGORITHMS) | set(algorithms.names())
SETTINGS_CLASSES = {known.settings.__name__ for known in algorithms.ALGORITHMS.values()}
SCRIPTS_OF_PEERS = "ddrl.bench.peer_"  # run by another library's Python, and named after its algorithms


def asks_which_algorithm(node: ast.AST) -> bool:
    """`isinstance(..., PPOConfig)`, or a comparison of an algorithm's name or a title with a known one."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
        return any(name in SETTINGS_CLASSES for name in ast.unparse(node.args[1]).replace("|", " ").split())
    if not isinstance(node, ast.Compare):
        return False
    sides = [node.left, *node.comparators]
    named = {leaf.value for side in sides for leaf in ast.walk(side) if isinstance(leaf, ast.Constant)}
    others = " ".join(ast.unparse(side) for side in sides if not isinstance(side, (ast.Constant, ast.Tuple, ast.List)))
    return bool(named & ALGORITHM_NAMES) and ("algorithm" in others or "title" in others)


@pytest.mark.parametrize(
    "line",
    ["isinstance(config.algorithm, DQNConfig)", "config.algorithm.name == 'ppo'", "config.title in ('a2c', 'x')"],
)
def test_the_rule_sees_what_it_is_to_see(line):
    assert asks_which_algorithm(ast.parse(line, mode="eval").body)


def test_only_algorithms_ask_which_algorithm_it_is():
    asking = [
        f"{module}: {ast.unparse(node)}"
        for module, path in MODULES.items()
        if not within(module, "ddrl.algorithms") and not module.startswith(SCRIPTS_OF_PEERS)
        for node in ast.walk(ast.parse(path.read_text()))
        if asks_which_algorithm(node)
    ]
    assert asking == []
