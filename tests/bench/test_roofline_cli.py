from __future__ import annotations

import json

import pytest

from ddrl import cli
from ddrl.bench import roofline
from ddrl.reporting import machine


@pytest.fixture
def measured(monkeypatch):
    """Stands in for the measurement, which takes seconds; keeps what it was asked for."""
    asked = []

    def measure_roofline(config, seconds, cores):
        asked.append((config, seconds, cores))
        return {"env": 1000.0, "inference": 2000.0, "gradient": 500.0, "roofline": 285.7}

    monkeypatch.setattr(roofline, "measure_roofline", measure_roofline)
    return asked


def test_json_names_the_machine(measured, capsys):
    line = "bench roofline --json - --network nature --compute-dtype float32 --batch-size 64"
    line += " --cores 3 --seconds 0.5"
    assert cli.main(line.split()) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["env"], result["roofline"]) == (1000.0, 285.7)
    assert result["machine"]["cores"] >= 1
    assert result["machine"]["packages"]["ddrl"]
    config, seconds, cores = measured[0]
    assert (config.network.network, config.network.compute_dtype) == ("nature", "float32")
    assert (config.optimizer.batch_size, seconds, cores) == (64, 0.5, 3)


def test_every_network_of_ddrl_train_can_be_measured(measured, tmp_path):
    plugin = tmp_path / "has_a_network.py"
    plugin.write_text("from ddrl.plugins import register_network\nregister_network('mine', print)\n")
    for words in (["--network", "impala"], ["--plugin", str(plugin), "--network", "mine"]):
        assert cli.main(["bench", "roofline", "--json", "-", *words]) == 0
    (first, *_), (second, *_) = measured
    assert (first.network.network, second.network.network) == ("impala", "mine")
    assert second.run.plugins == (str(plugin),), "the measuring processes import it, too"


def test_a_table_for_people(measured, capsys):
    assert cli.main(["bench", "roofline"]) == 0
    output = capsys.readouterr().out
    assert "gradient" in output and "500" in output
    assert machine.processor_name()[:20] in output


def test_bad_numbers(capsys):
    assert cli.main(["bench", "roofline", "--seconds", "0"]) == 2
    assert capsys.readouterr().err.startswith("ddrl: --seconds 0.0: must be a finite number above 0.0")


def test_a_file_that_cannot_be_written(measured, tmp_path, capsys):
    assert cli.main(["bench", "roofline", "--json", str(tmp_path / "no" / "file")]) == 2
    assert "name a file that can be written" in capsys.readouterr().err
