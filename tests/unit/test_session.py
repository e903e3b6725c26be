"""A machine without a fitting Java gets one clear sentence with the mend."""

import os
import sys

import pyspark
import pytest
from pyspark.errors import PySparkRuntimeError

from spark_dphist import session
from spark_dphist.errors import ConfigurationError, ReleaseError

OPENJDK = 'openjdk version "{}" 2024-01-16\nOpenJDK Runtime Environment (build x)'


@pytest.fixture
def bare_machine(monkeypatch, tmp_path):
    """No Java on the path, none in JAVA_HOME, no running session."""
    for name in ("JAVA_HOME", "SPARK_REMOTE", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


def fake_java(directory, says, exit_code=0):
    """An executable that answers like ``java -version``, without needing anything of the path."""
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True, exist_ok=True)
    java.write_text(
        f"#!{sys.executable} -S\nimport sys\nsys.stderr.write({says!r})\nsys.exit({exit_code})\n"
    )
    java.chmod(0o755)
    return java


def refusal():
    with pytest.raises(ConfigurationError) as caught:
        session.check_java()
    text = str(caught.value)
    assert "\n" not in text
    assert "Install Java 17" in text
    assert "openjdk-17-jre-headless" in text
    assert "JAVA_HOME" in text
    return text


@pytest.mark.usefixtures("bare_machine")
def test_no_java_at_all_is_said_with_the_mend():
    assert "none was found in PATH" in refusal()


def test_a_java_home_without_java_is_named(bare_machine, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(bare_machine / "nowhere"))
    fake_java(bare_machine, OPENJDK.format("17.0.9"))
    assert f"none was found in JAVA_HOME ({bare_machine / 'nowhere'})" in refusal()


def test_an_empty_java_home_is_as_none(bare_machine, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", "")
    fake_java(bare_machine, OPENJDK.format("17.0.9"))
    session.check_java()


@pytest.mark.parametrize(
    ("line", "version", "got"),
    [("4.0.1", "1.8.0_392", "8"), ("4.0.1", "11.0.21", "11"), ("3.5.9", "1.7.0_80", "7")],
)
def test_an_old_java_is_named_with_its_version(bare_machine, monkeypatch, line, version, got):
    monkeypatch.setattr(pyspark, "__version__", line)
    java = fake_java(bare_machine, OPENJDK.format(version))
    text = refusal()
    assert f"pyspark {line} needs Java {8 if line[0] == '3' else 17} or newer" in text
    assert f"got Java {got} ({java})" in text


@pytest.mark.parametrize(
    ("line", "version"),
    [("4.3.0", "17.0.9"), ("4.3.0", "21"), ("4.3.0", "17-ea"), ("3.5.9", "1.8.0_392")],
)
def test_a_fitting_java_passes(bare_machine, monkeypatch, line, version):
    monkeypatch.setattr(pyspark, "__version__", line)
    fake_java(bare_machine, OPENJDK.format(version))
    session.check_java()


def test_java_options_in_the_environment_do_not_hide_the_version(bare_machine):
    fake_java(
        bare_machine, 'Picked up JAVA_TOOL_OPTIONS: -Dx="version 3"\n' + OPENJDK.format("17.0.9")
    )
    session.check_java()


def test_java_home_goes_before_the_path(bare_machine, monkeypatch):
    fake_java(bare_machine, OPENJDK.format("1.8.0_392"))
    fake_java(bare_machine / "new", OPENJDK.format("21.0.1"))
    monkeypatch.setenv("JAVA_HOME", str(bare_machine / "new"))
    session.check_java()


@pytest.mark.parametrize("fault", ["fails", "is silent", "is no program", "may not be run"])
def test_a_java_that_does_not_run_is_named(bare_machine, monkeypatch, fault):
    java = fake_java(bare_machine / "home", OPENJDK.format("17"), exit_code=fault == "fails")
    monkeypatch.setenv("JAVA_HOME", str(bare_machine / "home"))
    if fault == "is silent":
        fake_java(bare_machine / "home", "")
    if fault == "is no program":
        java.write_bytes(b"\x00\x01")
    if fault == "may not be run":
        java.chmod(0o644)
    assert f"{java} is there, but does not run as Java" in refusal()


def test_a_java_that_hangs_is_given_up(bare_machine, monkeypatch):
    java = fake_java(bare_machine, "")
    java.write_text(f"#!{sys.executable} -S\nimport time\ntime.sleep(60)\n")
    monkeypatch.setattr(session, "_SECONDS_TO_ANSWER", 0.2)
    assert "does not run as Java" in refusal()


class FakeBuilder:
    def __init__(self, session="a session", error=None):
        self.settings, self.session, self.error = {}, session, error

    def appName(self, name):  # noqa: N802 - pyspark's name
        return self

    def config(self, name, value):
        self.settings[name] = value
        return self

    def getOrCreate(self):  # noqa: N802 - pyspark's name
        if self.error:
            raise self.error
        return self.session


def opened(monkeypatch, builder, settings, active=None, python="/my/python"):
    class FakeSession:
        @staticmethod
        def getActiveSession():  # noqa: N802 - pyspark's name
            return active

    FakeSession.builder = builder
    monkeypatch.setattr(session, "SparkSession", FakeSession)
    # Set first, so that what open_session sets is undone after the test.
    monkeypatch.setenv("PYSPARK_PYTHON", python)
    if not python:
        del os.environ["PYSPARK_PYTHON"]
    return session.open_session(settings)


def test_the_session_gets_the_settings_of_the_configuration(bare_machine, monkeypatch):
    fake_java(bare_machine, OPENJDK.format("21"))
    builder = FakeBuilder()
    assert opened(monkeypatch, builder, {"spark.ui.enabled": "false"}) == "a session"
    assert builder.settings == {"spark.ui.enabled": "false"}
    assert os.environ["PYSPARK_PYTHON"] == "/my/python"


def test_workers_run_this_python_unless_told_otherwise(bare_machine, monkeypatch):
    fake_java(bare_machine, OPENJDK.format("21"))
    opened(monkeypatch, FakeBuilder(), {}, python="")
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


@pytest.mark.usefixtures("bare_machine")
def test_without_java_no_session_is_tried(monkeypatch):
    builder = FakeBuilder(error=AssertionError("must not be called"))
    with pytest.raises(ConfigurationError, match="Spark needs Java"):
        opened(monkeypatch, builder, {})


@pytest.mark.usefixtures("bare_machine")
@pytest.mark.parametrize("where", ["connect", "setting", "spark-submit", "notebook"])
def test_no_java_is_asked_for_where_spark_runs_already(monkeypatch, where):
    if where == "connect":
        monkeypatch.setenv("SPARK_REMOTE", "sc://host")
    if where == "spark-submit":
        monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "12345")
    settings = {"spark.remote": "sc://host"} if where == "setting" else {}
    active = "running" if where == "notebook" else None
    assert opened(monkeypatch, FakeBuilder(), settings, active) == "a session"


def test_a_spark_that_does_not_start_is_one_sentence(bare_machine, monkeypatch):
    fake_java(bare_machine, OPENJDK.format("21"))
    error = PySparkRuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited.\nat x.y.z")
    with pytest.raises(ReleaseError, match=r"did not start: \[JAVA_GATEWAY_EXITED\]") as caught:
        opened(monkeypatch, FakeBuilder(error=error), {})
    assert "x.y.z" not in str(caught.value)
    assert "Nothing was read or published" in str(caught.value)
    assert "[spark.settings]" in str(caught.value)
