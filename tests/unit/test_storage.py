"""Paths: one place has one name; nothing is overwritten silently, nothing half-written stays."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_dphist.errors import ConfigurationError, ReleaseError
from spark_dphist.spark.storage import (
    PathTarget,
    TableTarget,
    lies_within,
    normalised_path,
    path_exists,
)

# The path logic needs no session.
NO_SPARK = None


def staged(path, mode="error", content="new"):
    """A target whose release is staged, as Spark would leave it."""
    target = PathTarget(str(path), "r1", mode=mode)
    Path(target.staging_path).mkdir(parents=True)
    Path(target.staging_path, "part-0").write_text(content)
    return target


@pytest.mark.parametrize("before", ["", "file:", "file://"])
@pytest.mark.parametrize("after", ["", "/", "//", "/.", "/../c", "/inner/.."])
def test_one_place_is_one_place_however_it_is_written(tmp_path, before, after):
    place, written = f"{tmp_path}/c", f"{before}{tmp_path}/c{after}"
    assert lies_within(written, place)
    assert lies_within(place, written)
    assert normalised_path(written) == (place if not before else f"file://{place}")


def test_a_relative_path_is_taken_from_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert normalised_path("out/x/") == f"{tmp_path}/out/x"
    assert normalised_path("./../y") == f"{tmp_path.parent}/y"


def test_the_home_directory_may_be_written_as_a_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert normalised_path("~/x") == f"{tmp_path}/x"


def test_symbolic_links_are_followed(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert normalised_path(f"{tmp_path}/link/x") == f"{tmp_path}/real/x"
    assert lies_within(f"{tmp_path}/link/x", f"{tmp_path}/real")
    assert lies_within(f"{tmp_path}/real/x", f"{tmp_path}/link")
    assert not lies_within(f"{tmp_path}/link/../x", f"{tmp_path}/link")


@pytest.mark.parametrize("name", ["ö ü", "100%", "a%20b", "2024-01-01T00:00", "a b#c", "x=1"])
def test_names_are_taken_as_they_are(tmp_path, name):
    assert normalised_path(f"{tmp_path}/{name}/") == f"{tmp_path}/{name}"


def test_dbfs_is_the_directory_where_databricks_mounts_it():
    assert lies_within("dbfs:/x/y/", "/dbfs/x")
    assert lies_within("/dbfs/x/y", "dbfs:/x")
    assert normalised_path("dbfs:/x/../y/") == "dbfs:/y"


def test_a_remote_path_keeps_its_scheme_and_loses_dots_and_slashes():
    assert normalised_path("gs://bucket/a/../b/") == "gs://bucket/b"
    assert lies_within("gs://bucket/a/b", "gs://bucket/a/")
    assert not lies_within("gs://bucket/ab", "gs://bucket/a")
    assert not lies_within("gs://other/a", "gs://bucket/a")


@pytest.mark.parametrize("path", ["nope://bucket/x", "C:\\data", "FILE:/tmp/x", "http://host/x"])
def test_an_unknown_scheme_is_refused_with_the_mend(path):
    with pytest.raises(ConfigurationError) as caught:
        normalised_path(path)
    assert repr(path) in str(caught.value)
    assert "Use a local path, hdfs://, s3://, gs:// or abfss://, or a table" in str(caught.value)


@pytest.mark.parametrize(
    ("path", "directory", "expected"),
    [
        ("/a/b", "/a/b", True),
        ("/a/b/", "/a/b", True),
        ("/a/b/c/d", "/a/b", True),
        ("/a/b", "/", True),
        ("/", "/", True),
        ("/a/bc", "/a/b", False),
        ("/a/b-audit", "/a/b", False),
        ("/a", "/a/b", False),
        ("/a/b/../c", "/a/b", False),
        ("/a/x/../b/c", "/a/b", True),
        ("/", "/a", False),
        ("file:///a/b/c", "/a/b", True),
        ("/a/b/c", "file:/a/b", True),
    ],
)
def test_inside_means_the_directory_itself_or_below_it(path, directory, expected):
    assert lies_within(path, directory) is expected


names = st.text(st.characters(exclude_characters="/\0:~", codec="utf-8"), min_size=1, max_size=4)
paths = st.lists(names.filter(lambda name: name not in (".", "..")), max_size=4)


@given(paths, paths)
def test_inside_is_what_comparing_the_parts_says(inner, outer):
    # Below a directory that does not exist, so that no link plays a part.
    root = "/no-such-directory"
    one, two = "/".join([root, *inner]), "/".join([root, *outer])
    assert lies_within(one, two) == (inner[: len(outer)] == outer)
    assert normalised_path(normalised_path(one)) == normalised_path(one)


def test_the_staging_directory_lies_beside_the_output_and_names_the_release(tmp_path):
    target = PathTarget(f"{tmp_path}/out/", "visits-1")
    assert target.staging_path == f"{tmp_path}/out.staging-visits-1"
    assert not lies_within(target.staging_path, target.path)


def test_audits_stand_beside_the_output_as_parquet(tmp_path):
    target = PathTarget(f"{tmp_path}/out/", "r1", "csv", {"header": "true"}, "overwrite")
    beside = target.beside("_audit").beside("_groups")
    assert beside == PathTarget(f"{tmp_path}/out_audit_groups", "r1", mode="overwrite")
    assert not lies_within(beside.path, target.path)


def test_audits_stand_beside_a_table_in_its_format():
    target = TableTarget("lake.visits", "visits-1.a", "delta", {"x": "y"}, "overwrite")
    expected = TableTarget("lake.visits_audit", "visits-1.a", "delta", {"x": "y"}, "overwrite")
    assert target.beside("_audit") == expected
    assert target.staging_table.startswith("lake.visits__staging_")


def test_no_two_release_ids_share_a_staging_table_whatever_a_catalog_folds():
    ids = ["2013-01", "2013.01", "2013_01", "a", "A", "a-b", "a.b"]
    names = {TableTarget("lake.visits", each).staging_table.lower() for each in ids}
    assert len(names) == len(ids)


@pytest.mark.parametrize("kind", ["directory", "file"])
def test_an_existing_output_is_refused_with_the_mends(tmp_path, kind):
    path = tmp_path / "out"
    if kind == "directory":
        path.mkdir()
    else:
        path.write_text("")
    with pytest.raises(ConfigurationError, match=r"exists.*choose another.*mode = \"overwrite\""):
        PathTarget(str(path), "r1").refuse_existing(NO_SPARK)
    PathTarget(str(path), "r1", mode="overwrite").refuse_existing(NO_SPARK)


def test_the_rest_of_an_unfinished_release_is_refused_in_every_mode(tmp_path):
    for mode in ("error", "overwrite"):
        target = staged(tmp_path / mode, mode)
        with pytest.raises(ConfigurationError, match=r"left over.*another release_id"):
            target.refuse_existing(NO_SPARK)


def test_publishing_moves_all_into_place_and_leaves_nothing_beside(tmp_path):
    staged(tmp_path / "out").publish(NO_SPARK)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out" / "part-0").read_text() == "new"


def test_an_output_that_came_into_being_meanwhile_is_not_touched(tmp_path):
    target = staged(tmp_path / "out")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "part-0").write_text("theirs")
    with pytest.raises(ReleaseError, match="has come into being while the release ran"):
        target.publish(NO_SPARK)
    assert (tmp_path / "out" / "part-0").read_text() == "theirs"
    assert path_exists(target.staging_path)


def test_overwriting_replaces_the_old_release_wholly(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "part-9").write_text("old")
    staged(tmp_path / "out", "overwrite").publish(NO_SPARK)
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "part-0"]


def test_overwriting_what_is_not_there_is_publishing(tmp_path):
    staged(tmp_path / "out", "overwrite").publish(NO_SPARK)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_discarded_release_leaves_nothing_and_can_be_discarded_again(tmp_path):
    target = staged(tmp_path / "out")
    target.discard(NO_SPARK)
    target.discard(NO_SPARK)
    assert list(tmp_path.iterdir()) == []


def test_a_driver_side_table_is_staged_as_one_parquet_file(tmp_path):
    table = pa.table({"key": ["a", None], "noisy_count": [1, 2]})
    target = PathTarget(f"{tmp_path}/audit", "r1")
    target.stage_arrow(NO_SPARK, table)
    assert not path_exists(target.path)
    target.publish(NO_SPARK)
    (file,) = (tmp_path / "audit").iterdir()
    assert pyarrow.parquet.read_table(file).equals(table)


def test_a_target_is_shown_as_it_was_written():
    assert PathTarget("out/x", "r1").described == "out/x"
    assert TableTarget("lake.x", "r1").described == "lake.x"
