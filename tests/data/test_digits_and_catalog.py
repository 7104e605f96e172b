"""The built-in set, the table of all sets, and the picture of a split."""

import re

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from fedaccord.core.errors import DataError, SettingsError
from fedaccord.data import catalog, digits, sources
from fedaccord.data.sources import Source
from fedaccord.report import split

FETCHED = [name for name, entry in catalog.CATALOG.items() if entry.source is not None]


# --- digits ---


def test_digits_are_sklearns_split_at_the_last_360():
    got, images = digits.load(), load_digits().images
    assert (len(got.train), len(got.test)) == (1437, 360)
    assert got.classes == tuple("0123456789")
    both = np.concatenate([got.train.inputs, got.test.inputs])
    # sixteen shades and white, 0 ... 16, by 16: the top, 256, does not fit a byte and becomes 255
    expected = {value: 16 * value for value in range(16)} | {16: 255}
    np.testing.assert_array_equal(both[:, 0], np.vectorize(expected.get)(images.astype(int)))
    assert both.dtype == np.uint8
    np.testing.assert_array_equal(np.concatenate([got.train.targets, got.test.targets]), load_digits().target)


def test_digits_have_all_ten_classes_in_both_parts():
    got = digits.load()
    assert (got.train.targets.bincount(minlength=10) > 100).all()  # 1437 / 10, less a third
    assert (got.test.targets.bincount(minlength=10) > 25).all()


# --- the catalog ---


def test_an_unknown_set_is_refused_with_the_known_ones():
    with pytest.raises(SettingsError, match=r"unknown data set 'minst': expected one of digits, mnist, .*"):
        catalog.entry("minst")


def test_the_built_in_set_is_always_here():
    assert catalog.where("digits") == catalog.fetch("digits") == "built in"
    assert catalog.verify("digits") == ["digits: 1,437 + 360 examples of 1x8x8, 10 classes"]


@pytest.mark.parametrize("name", FETCHED)
def test_on_a_fresh_machine_a_set_is_not_here_yet_and_verify_says_how_to_get_it(name):
    assert catalog.where(name) == "not here yet"
    with pytest.raises(DataError, match=rf"^{name}: not on this machine; `fedaccord data fetch {name}` gets it$"):
        catalog.verify(name)


@pytest.mark.parametrize("name", [name for name in catalog.CATALOG if name != "speech_commands"])
def test_recordings_go_with_speech_commands_only(name, tmp_path):
    with pytest.raises(SettingsError, match="speech_commands only"):
        catalog.fetch(name, tmp_path)


@pytest.mark.parametrize("name", FETCHED)
def test_every_checksum_is_a_sha256_and_the_set_is_stored_under_its_name(name):
    source = catalog.entry(name).source
    assert source.name == name
    assert all(re.fullmatch("[0-9a-f]{64}", each) for each in source.files.values())


def test_verify_lists_the_files_and_then_what_was_parsed(tmp_path, monkeypatch):
    content = b"four"
    source = Source("tiny", {"file": "04efaf080f5a3e74e1c29d1ca6a48569382cbbcd324e8d59d2b83ef21c039f00"})  # sha256sum
    monkeypatch.setitem(catalog.CATALOG, "tiny", catalog.Entry("", digits.load, source))
    monkeypatch.setenv("FEDACCORD_DATA", str(tmp_path))
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "file").write_bytes(content)
    assert catalog.where("tiny") == catalog.fetch("tiny") == str(tmp_path / "tiny")
    assert catalog.verify("tiny") == [
        "file: 4 bytes, SHA-256 as pinned",
        "tiny: 1,437 + 360 examples of 1x8x8, 10 classes",
    ]
    (tmp_path / "tiny" / "file").write_bytes(b"five")
    with pytest.raises(DataError, match=rf"{tmp_path}/tiny/file: wrong checksum"):
        catalog.verify("tiny")


@pytest.mark.parametrize("name", FETCHED)
def test_a_real_set_is_verified_where_it_is_found(name, real_set):
    source = catalog.entry(name).source
    folder = real_set(source)
    assert catalog.where(name) == catalog.fetch(name) == str(folder)
    assert set(sources.find(source)) == set(source.files)


# --- the picture of a split ---

COUNTS = np.array([[1234, 0], [7, 21]])


def test_the_table_shows_every_count_and_the_sums(capsys):
    split.print_table(COUNTS, ("cat", "dog"), "who holds what")
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert lines[:-1] == [
        ["who", "holds", "what"],
        ["client", "cat", "dog", "all"],
        ["0", "1,234", "·", "1,234"],
        ["1", "7", "21", "28"],
        ["all", "1,241", "21", "1,262"],
    ]
    # the median of two is their mean, (1234 + 28) / 2
    assert " ".join(lines[-1]) == "2 clients; examples a client: least 28, median 631, most 1,234"


def test_the_table_of_many_clients_is_cut_but_sums_them_all(capsys):
    split.print_table(np.full((split.SHOWN + 60, 2), 3), ("cat", "dog"), "many")
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert [line[0] for line in lines[2:-2]] == [*map(str, range(split.SHOWN)), "..."]
    assert lines[-2] == ["all", "300", "300", "600"]  # 100 clients x 3
    assert lines[-1][:2] == ["100", "clients;"]


def test_class_names_are_printed_as_they_are(capsys):
    """A folder may be called [red] or [/b]: that is no mark-up."""
    split.print_table(COUNTS, ("[red]", "[/b]"), "[bold]")
    assert {"[red]", "[/b]", "[bold]"} <= set(capsys.readouterr().out.split())


@pytest.mark.parametrize("clients", [2, 300])
def test_the_picture_is_written_as_png_and_svg(clients, tmp_path):
    counts = np.resize(COUNTS, (clients, 2))
    for name in ("split.png", "split.svg"):
        split.draw(counts, ("cat", "dog"), "who holds what", tmp_path / name)
    with Image.open(tmp_path / "split.png") as picture:
        picture.load()
        assert min(picture.size) > 100
        assert len(set(picture.convert("L").get_flattened_data())) > 2  # not blank
    assert "<svg" in (tmp_path / "split.svg").read_text()


@pytest.mark.parametrize("name", ["split.xyz", "no-such-folder/split.png"])
def test_a_picture_that_cannot_be_written_is_an_error_that_names_it(name, tmp_path):
    with pytest.raises(SettingsError, match=rf"{tmp_path}/{name}: cannot be written"):
        split.draw(COUNTS, ("cat", "dog"), "who holds what", tmp_path / name)
