"""Mechanisms side by side: at one promise, at one budget, and by one line of configuration."""

import pytest

from spark_dphist.config import load_configuration
from spark_dphist.errors import ConfigurationError
from spark_dphist.mechanisms.refuted import REFUSED

FILE = """\
input.path = "/there/is/no/such/table"
groups = {{columns = ["a"], keys = {{path = "/nor/such/keys"}}}}
output.path = "/nor/this"

[mechanism]
name = "{name}"
relative_error = {relative_error}
floor = {floor}

[privacy]
{privacy}
"""


def written(tmp_path, name="linear_log", relative_error=0.1, floor=50, privacy=""):
    file = tmp_path / "x.toml"
    file.write_text(
        FILE.format(name=name, relative_error=relative_error, floor=floor, privacy=privacy)
    )
    return file


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_refuted_mechanism_is_refused_with_the_reason_and_a_pointer(tmp_path, name):
    with pytest.raises(ConfigurationError) as refusal:
        load_configuration(written(tmp_path, name))
    assert REFUSED[name] in str(refusal.value)
    assert "docs/" in str(refusal.value)
