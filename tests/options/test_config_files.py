"""Files of settings: what is in them wins over the preset, options over it; mistakes have their line."""

from __future__ import annotations

import sys

import pytest

from ddrl import algorithms, cli, rundir
from ddrl.commands import train
from ddrl.errors import UsageError
from ddrl.options import config_files, train_options
from ddrl.options.named_settings import as_yaml, differences
from ddrl.types import Machine

MACHINE = Machine(2, 16 * 10**9)
PRESETS = [(name, preset) for name, known in algorithms.names().items() for preset in known.presets]


def parse(*words) -> train_options.TrainArguments:
    return train_options.parse(list(map(str, words)), MACHINE)


@pytest.fixture
def written(tmp_path):
    """Writes a file of settings."""

    def write(content: str | bytes, name: str = "settings.yaml"):
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return tmp_path / name

    return write


@pytest.mark.parametrize("algorithm, preset", PRESETS)
def test_what_is_printed_reads_back_as_the_same_settings(algorithm, preset, written):
    wanted = parse(algorithm, "--preset", preset)
    read = parse("--config", written(as_yaml(wanted.config, algorithm, preset, ["A heading."])))
    assert (read.config, read.algorithm, read.preset) == (wanted.config, algorithm, preset)


def test_printing(written, capsys):
    line = ["ppo", "--preset", "smoke", "--seed", "7", "--print-config", "--run-dir", "a: b"]
    assert train.main(line) == 0
    text = capsys.readouterr().out
    assert "# Every setting of `ddrl train ppo --preset smoke --seed 7 --run-dir 'a: b'`" in text
    assert parse("--config", written(text)).config == parse(*line).config


def test_printing_a_run_that_is_there_leaves_its_directory_out(tmp_path, written, capsys):
    path, config = rundir.create_run_dir(parse("ppo", "--preset", "smoke", "--run-dir", tmp_path / "run").config)
    assert train.main(["--resume", str(path), "--print-config"]) == 0
    assert parse("--config", written(capsys.readouterr().out)).config == config.changed(run={"run_dir": ""})


def test_the_preset_the_file_the_options(written):
    file = written(
        "algorithm: ppo\npreset: laptop\ngame: pong\nlearning_rate: 1e-4\nepochs: 2\nvideo: no\nminutes: 1\n"
    )
    config = parse("--config", file, "--epochs", "3", "--video").config
    assert (config.title, config.environment.game, config.optimizer.learning_rate) == ("ppo", "pong", 1e-4)
    assert (config.algorithm.epochs, config.run.video, config.run.minutes) == (3, True, 1.0)
    assert config.sampling == parse("ppo", "--preset", "laptop").config.sampling
    other = parse("appo", "--config", file, "--preset", "smoke")
    assert (other.algorithm, other.preset, other.config.environment.game) == ("appo", "smoke", "pong")


def test_options_of_a_game_are_a_list(written):
    file = written("network: mlp\ngame: FrozenLake-v1\ngame_options: [is_slippery=False, map_name=8x8]\n")
    config = parse("ppo", "--config", file).config
    assert config.environment.game_options == ("is_slippery=False", "map_name=8x8")
    assert parse("--config", written(as_yaml(config, "ppo", "default", []))).config == config


def test_settings_that_only_hold_together_with_options(written):
    """Neither is right alone with the preset: a rollout must be a multiple of its minibatches."""
    file = written("batch-size: 384\n")
    with pytest.raises(UsageError, match=r"settings.yaml, line 1: --batch-size 384: does not divide"):
        parse("ppo", "--config", file)
    assert parse("ppo", "--simulators", "12", "--config", file).config.batch_size == 384


def test_settings_that_only_hold_together_with_those_of_python(written):
    """What is in the file alone need not be right, as on the command line."""
    file = written("batch-size: 384\nvideo: no\n")
    with pytest.raises(UsageError, match=r"settings.yaml, line 1: --batch-size 384: does not divide"):
        train_options.settings_of("ppo", None, MACHINE, config=file)
    more = {"simulators": 12, "minutes": 2, "learning_rate": 1e-3, "evaluator": False, "loggers": ()}
    words = ("--simulators", 12, "--minutes", 2, "--learning-rate", 1e-3, "--no-evaluator", "--loggers")
    by_names = train_options.settings_of("ppo", None, MACHINE, config=file, target_score=None, **more)
    assert by_names.config == parse("ppo", *words, "--config", file).config and by_names.config.batch_size == 384
    wrong = written("simulators: 0\n")
    assert train_options.settings_of("ppo", None, MACHINE, config=wrong, simulators=12).config.sampling.simulators == 12
    with pytest.raises(UsageError, match=r"^--minutes is '2', which is not of type float$"):
        train_options.settings_of("ppo", None, MACHINE, config=wrong, minutes="2")


def test_a_resumed_run_takes_a_file(tmp_path, written):
    path, _ = rundir.create_run_dir(parse("ppo", "--preset", "smoke", "--run-dir", tmp_path / "run").config)
    assert parse("--resume", path, "--config", written("learning-rate: 0.5\n")).config.optimizer.learning_rate == 0.5
    with pytest.raises(UsageError, match="line 1: --game pong: the run to resume has"):
        parse("--resume", path, "--config", written("game: pong\n"))


def test_the_lines_of_many_names_in_toml_are_found_without_reading_it_again_for_each(written, monkeypatch):
    """A file of some thousand lines took minutes."""
    toml = pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")
    loads, calls = toml.loads, []
    monkeypatch.setattr(toml, "loads", lambda text: (calls.append(text), loads(text))[1])
    text = 'game = """\nseed = 3"""\nseed = 1\n' + "".join(f"'a-{i}' = 1\n" for i in range(100)) + "[b.c]\nd = 1\n"
    entries = config_files.read(written(text.replace("[b.c]\nd = 1\n", ""), "settings.toml")).entries
    assert [entries[name].line for name in ("game", "seed", "a-0", "a-99")] == [1, 3, 4, 103] and len(calls) <= 3
    with pytest.raises(UsageError, match="line 104: b: it holds a group"):
        config_files.read(written(text, "settings.toml"))


def test_toml(written):
    text = (
        'game = """\nworkers = 3"""\n"policy-layers" = [64, 32]\nagent_steps = 1e6\nvideo = false\nlearning-rate = 1\n'
    )
    config = parse("dpg", "--config", written(text, "settings.toml")).config
    assert (config.environment.game, config.network.policy_layers) == ("workers = 3", (64, 32))
    assert (config.run.agent_steps, config.run.video, config.optimizer.learning_rate) == (10**6, False, 1.0)


@pytest.mark.parametrize(
    "text, message",
    [
        (
            "game: pong\nlerning-rate: 1\n",
            r"line 2: lerning-rate: there is no such setting; did you mean learning-rate",
        ),
        ("lr: 1\n", r"line 1: lr: there is no such setting; did you mean learning-rate\?"),
        ("clip_range: 1\n", "line 1: clip-range: there is no such setting"),
        ("\nlearning-rate: -1\n", "line 2: --learning-rate -1.0: must be"),
        ("stop-at-target: no\n", "line 1: --no-stop-at-target: there is no --target-score to reach"),
        ("learning-rate: fast\n", "line 1: learning-rate fast: must be a number"),
        ("learning-rate: [1, 2]\n", "line 1: learning-rate: it takes a single value"),
        ("seed: 1\n\nseed: 2\n", "line 3: seed: line 1 has it already"),
        ("network: natur\n", r"line 1: --network natur: must be one of .*; did you mean nature\?"),
        ("optimizer:\n  learning-rate: 1\n", "line 1: optimizer: it holds a group; write settings one below another"),
        ("seed: !!python/object/apply:os.getpid []\n", r"line 1: seed: the tag !!python/object/apply:os.getpid asks"),
        ("seed: !mine 3\n", "line 1: seed: the tag !mine asks"),
        ("!!python/name:os.system '': 3\n", r"line 1: the tag !!python/name:os.system"),
        ("resume: runs/a\n", "line 1: resume: it belongs on the command line"),
        ("config: other.yaml\n", "line 1: config: it belongs on the command line"),
        ("preset: latop\n", r"line 1: --preset latop: there is none of that name; did you mean laptop\?"),
        ("a: b: c\n", "line 1: mapping values are not allowed here"),
        ("\ngame-options: [size=6, size=7]\n", "line 2: --game-options size=7: size is there twice; give it once"),
        ("game-options: {size: 6}\n", "line 1: game-options: it holds a group"),
        ("game: pong\n\tseed: 3\n", "line 2: found character"),
        ("- seed\n", "line 1: it must be YAML"),
        ("seed: " + "[" * 5000, "is malformed"),
        (b"\xff\xfe", "is malformed"),
        (b"seed: \x00", "special characters are not allowed"),
    ],
)
def test_mistakes_in_yaml_have_their_line(written, text, message):
    with pytest.raises(UsageError, match=message) as refusal:
        parse("a2c", "--config", written(text))
    assert str(refusal.value).count("\n") == 0 and "settings.yaml" in str(refusal.value)


@pytest.mark.parametrize(
    "text, message",
    [
        ("seed = 1\nlerning-rate = 1\n", "line 2: lerning-rate: there is no such setting; did you mean learning-rate"),
        ('game = """\nworkers = 0\n"""\nworkers = 0\n', "line 4: --workers 0: must be"),
        ("seed = 1\n[optimizer]\nbeta1 = 1\n", "line 2: optimizer: it holds a group"),
        ("seed = 1979-05-27\n", "line 1: seed: it holds a value that no setting has"),
        ("seed = 1\nseed = 2\n", "line 2: Cannot overwrite a value"),
        ("seed = \n", "line 1: Invalid value"),
    ],
)
def test_mistakes_in_toml_have_their_line(written, text, message):
    with pytest.raises(UsageError, match=message):
        parse("a2c", "--config", written(text, "settings.toml"))


@pytest.mark.parametrize(
    "name, message",
    [
        ("nowhere.yaml", "nowhere.yaml: No such file"),
        ("settings.json", "settings.json: the name must end in .yaml, .yml or .toml"),
        (".yaml/", "must end in"),
    ],
)
def test_files_that_cannot_be_read(tmp_path, name, message):
    with pytest.raises(UsageError, match=message):
        config_files.read(f"{tmp_path}/{name}")


def test_a_file_names_plugins(written, tmp_path):
    """They are loaded before anything is looked up, and printed with the other settings."""
    plugin = tmp_path / "callbacks_of_a_file.py"
    plugin.write_text("from ddrl.plugins import register_callback\nregister_callback('of-a-file', object)\n")
    config = parse("ppo", "--config", written(f"plugin: {plugin}\n")).config
    assert config.run.plugins and config.run.plugins == parse("ppo", "--plugin", plugin).config.run.plugins
    text = as_yaml(config, "ppo", "default", [])
    assert "plugins:" not in text and parse("--config", written(text)).config == config


def test_a_blank_value_is_none_where_there_is_one_and_else_refused(written):
    blank = parse("ppo", "--preset", "smoke", "--config", written("target-score:\n"))
    assert blank.config.evaluation.target_score is None
    assert parse("ppo", "--config", written('game: "null"\n')).config.environment.game == "null"
    for text in ("run-dir:\n", "seed: 1\nrun-dir: null\n"):
        line = text.count("\n")
        with pytest.raises(UsageError, match=rf"settings.yaml, line {line}: run-dir: it has no value; write one, or"):
            parse("ppo", "--config", written(text))


def test_an_empty_file_says_nothing(written):
    assert parse("ppo", "--config", written("# nothing\n")).config == parse("ppo").config


def test_an_algorithm_that_there_is_not(written):
    with pytest.raises(UsageError, match=r"line 1: algorithm PPO: there is no such algorithm; did you mean ppo\?"):
        parse("--config", written("algorithm: PPO\n"))


def test_a_tag_builds_nothing(written, tmp_path):
    made = tmp_path / "made"
    with pytest.raises(UsageError, match="the tag"):
        parse("ppo", "--config", written(f"game: !!python/object/apply:os.mkdir [{made}]\n"))
    assert not made.exists()


def test_diff(tmp_path, capsys):
    one = parse("ppo", "--preset", "smoke", "--run-dir", tmp_path / "one").config
    two = parse("a2c", "--preset", "smoke", "--seed", "3", "--run-dir", tmp_path / "two").config
    paths = [str(rundir.create_run_dir(config)[0]) for config in (one, two)]
    assert cli.main(["diff", *paths]) == 0
    lines = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()[1:]}
    assert lines["algorithm"] == ["ppo", "a2c"] and lines["seed"] == ["1", "3"] and lines["epochs"][1] == "-"
    assert lines.keys() == {each.name for each in differences([one, two])} and "run-dir" not in lines
    assert cli.main(["diff", paths[0], paths[0]]) == 0
    assert "have the same settings" in capsys.readouterr().out
    assert cli.main(["diff", paths[0], str(tmp_path)]) == 2


def test_diff_gives_a_terminal_no_commands(tmp_path, capsys):
    paths = []
    for name, game in (("one", "a\x1b[2Jb"), ("two", "a\x9bK\nb")):
        config = parse("ppo", "--preset", "smoke", "--run-dir", tmp_path / name).config
        paths.append(rundir.create_run_dir(config)[0])
        content = rundir.read_json(paths[-1] / rundir.CONFIG)
        content["environment"]["game"] = game
        rundir.write_json(paths[-1] / rundir.CONFIG, content)
    assert cli.main(["diff", *map(str, paths)]) == 0
    (line,) = capsys.readouterr().out.splitlines()[1:]
    assert line.split() == ["game", "a?[2Jb", "a?K", "b"]
