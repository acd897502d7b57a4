"""The commit of the program, in checkouts of git that the tests make, and where there is none."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from ddrl.reporting import machine

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="no git on this machine")


def git(where, *words):
    """What git prints there, whatever this machine's settings of git are."""
    settings = ("user.name=A", "user.email=a@example.org", "commit.gpgsign=false", "core.hooksPath=/dev/null")
    options = [part for setting in settings for part in ("-c", setting)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(
        ["git", "-C", str(where), *options, *words], capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout.strip()


def program(root):
    """The folders of a program, in a folder that is made for them."""
    for name in machine.PROGRAM:
        (root / name).mkdir(parents=True)
        (root / name / "__init__.py").write_text("")
    return root


@pytest.fixture
def checkout(tmp_path):
    """One with a commit, and the 12 digits of that."""
    root = program(tmp_path / "checkout")
    (root / "README.md").write_text("first")
    git(root, "init", "--quiet")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message", "first")
    return root, git(root, "rev-parse", "HEAD")[:12]


def test_the_commit_of_a_checkout(checkout):
    root, commit = checkout
    assert len(commit) == 12 and machine.source_commit(root) == commit
    (root / "ddrl" / "new.py").write_text("")
    (root / "README.md").write_text("second")
    assert machine.source_commit(root) == commit, "an untracked file may be anything, and a page computes nothing"


@pytest.mark.parametrize("staged", [False, True])
def test_changes_are_marked(checkout, staged):
    root, commit = checkout
    (root / "cluster" / "__init__.py").write_text("changed = True\n")
    if staged:
        git(root, "add", ".")
    assert machine.source_commit(root) == f"{commit}+changes"


def test_a_worktree_is_a_checkout_too(checkout, tmp_path):
    root, commit = checkout
    git(root, "worktree", "add", str(tmp_path / "tree"))
    assert (tmp_path / "tree" / ".git").is_file() and machine.source_commit(tmp_path / "tree") == commit


def test_an_environment_in_somebodys_repository_has_not_its_commit(checkout):
    root, _ = checkout
    assert machine.source_commit(program(root / ".venv" / "lib" / "site-packages")) is None


def test_no_checkout_and_none_without_a_commit(tmp_path):
    root = program(tmp_path / "installed")
    assert machine.source_commit(root) is None
    git(root, "init", "--quiet")
    git(root, "add", ".")
    assert machine.source_commit(root) is None


def test_a_hooks_variables_do_not_count(checkout, tmp_path, monkeypatch):
    root, commit = checkout
    git(tmp_path, "init", "--quiet", "other")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    assert machine.source_commit(root) == commit


def test_without_git_there_is_none(checkout, tmp_path, monkeypatch):
    root, _ = checkout
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert machine.source_commit(root) is None


@pytest.mark.parametrize(
    "does", ["echo 'fatal: detected dubious ownership in repository' >&2; exit 128", "exec sleep 60"]
)
def test_a_git_that_refuses_or_does_not_answer_tells_of_none(does, checkout, tmp_path, monkeypatch):
    root, _ = checkout
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git").write_text(f"#!/bin/sh\n{does}\n")
    (tmp_path / "bin" / "git").chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path / "bin"), os.environ["PATH"]]))
    monkeypatch.setattr(machine, "GIT_SECONDS", 0.5)
    assert machine.source_commit(root) is None


def test_the_description_of_a_machine_has_the_commit(monkeypatch):
    monkeypatch.setattr(machine, "source_commit", lambda: "0123456789ab+changes")
    assert machine.describe()["commit"] == "0123456789ab+changes"


def test_the_mark_of_the_source_is_equal_where_all_modules_are(tmp_path):
    one, other = program(tmp_path / "one"), program(tmp_path / "other")
    (other / "ddrl" / "notes.txt").write_text("no module")
    (other / "ddrl" / ".#open.py").symlink_to("nowhere")  # of an editor
    assert machine.source_mark(one) == machine.source_mark(other)
    (other / "cluster" / "__init__.py").write_text("edited = True\n")
    assert machine.source_mark(one) != machine.source_mark(other)
