import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedaccord import config
from fedaccord.config import FIELDS, SPLITS
from fedaccord.core.errors import SettingsError
from fedaccord.methods.registry import METHODS, find, words_of


def test_every_setting_has_a_sentence():
    for item in config.table().values():
        assert len(item.help) > 15, item.name


@pytest.mark.slow
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "task": st.text(max_size=20),
            "method": st.sampled_from(METHODS),
            "split": st.sampled_from(SPLITS),
            "clients": st.none() | st.integers(1, 10**6),
            "lr": st.floats(1e-9, 1e3),
            "entropy_min": st.none() | st.floats(0, 10),
            "rm_weight": st.floats(0, 10),
            "allow_empty": st.booleans(),
            "seed": st.integers(0, 2**63 - 1),
        },
    )
)
def test_settings_round_trip_through_toml_exactly(tmp_path_factory, values):
    settings = config.make(values)
    path = tmp_path_factory.mktemp("toml") / "settings.toml"
    path.write_text(config.to_toml(settings), encoding="utf-8", newline="")
    assert config.make(config.read_toml(path)) == settings


def test_the_path_of_a_method_may_have_a_plus_in_it(tmp_path):
    folder = tmp_path / "c++"
    folder.mkdir()
    (folder / "mine.py").write_text(
        "from fedaccord import Part\n\n\nclass Mine(Part):\n    name = 'Mine'\n\n\nmine = Mine()\n"
    )
    file = f"{folder / 'mine.py'}:mine"
    assert words_of(f"FA+{file}+AH") == ["FA", file, "AH"]
    assert find(f"{file}+AH").name == "Mine+AH"


BAD = [
    ({"lr": 0.0}, "lr = 0.0: expected more than 0"),
    ({"lr": "fast"}, "lr = 'fast': expected a number"),
    ({"lr": float("nan")}, "lr = nan: expected a number"),
    ({"rounds": 2.5}, "rounds = 2.5: expected a whole number"),
    ({"rounds": True}, "rounds = True: expected a whole number"),
    ({"rounds": 0}, "rounds = 0: expected 1 or more"),
    ({"fraction": 1.5}, "fraction = 1.5: expected more than 0, at most 1"),
    ({"method": "FedSGD"}, "there is no 'FedSGD'; methods are FA, FA+WD"),
    ({"split": "noniid"}, "split = 'noniid': expected one of iid, non-iid"),
    ({"momentum": 1.0}, "momentum = 1.0: expected in [0, 1)"),
    ({"allow_empty": 1}, "allow_empty = 1: expected true or false"),
    ({"learning_rate": 1.0}, "unknown setting 'learning_rate'"),
    ({"round": 5}, "did you mean 'rounds'?"),
    ({"rm_weight": -1.0}, "rm_weight = -1.0: expected 0 or more"),
    ({"method": "FA+RM+RM"}, "a part is named twice"),
]


@pytest.mark.parametrize(("values", "text"), BAD)
def test_a_wrong_key_or_value_is_one_line_that_says_what_was_expected(values, text):
    with pytest.raises(SettingsError) as caught:
        config.make(values)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_values_as_typed():
    typed = ["lr=1e-2", "rounds=7", "allow-empty=yes", "task=a=b", "entropy_min=0"]
    assert dict(config.parse_assignment(text, FIELDS) for text in typed) == {
        "lr": 0.01,
        "rounds": 7,
        "allow_empty": True,
        "task": "a=b",
        "entropy_min": 0.0,
    }
    for wrong in ("lr", "rounds=1.5", "allow_empty=maybe", "nothing=1"):
        with pytest.raises(SettingsError):
            config.parse_assignment(wrong, FIELDS)


def test_a_file_may_write_whole_numbers_for_floats_and_faults_name_the_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("fraction = 1\n")
    assert config.read_toml(path) == {"fraction": 1.0}
    for text in ("fraction = ", "colour = 1", "\x00"):
        path.write_text(text)
        with pytest.raises(SettingsError, match=r"mine\.toml"):
            config.read_toml(path)
    with pytest.raises(SettingsError, match="no such file"):
        config.read_toml(tmp_path / "absent.toml")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"a." * 600 + b"b = 1", "more than 512 points"),
        (b"a = 1" + bytes(1 << 17), "more than 65,536 bytes"),
        (b"seed = 18446744073709551616", "more than 64 bits"),
        (b"a = " + b"[" * 60_000, "too deep"),
    ],
)
def test_a_file_that_would_take_too_much_to_read_is_one_line(tmp_path, text, says):
    (tmp_path / "settings.toml").write_bytes(text)
    with pytest.raises(SettingsError, match=says):
        config.read_toml(tmp_path / "settings.toml")


def test_a_long_grid_and_a_large_seed_are_read_again(tmp_path):
    grid = "lr = " + ", ".join(f"{0.001 * 1.07**n:.12f}" for n in range(100))
    settings = config.make({"method": "FA+AH", "grid": grid, "seed": 2**64 - 1})
    (tmp_path / "settings.toml").write_text(config.to_toml(settings))
    assert config.make(config.read_toml(tmp_path / "settings.toml")) == settings


def test_later_layers_win():
    made = config.make({"lr": 1.0, "rounds": 5}, {"lr": 2.0})
    assert made == dataclasses.replace(config.make({}), lr=2.0, rounds=5)


def test_a_method_brings_its_settings_and_others_are_accepted_beside_them():
    made = config.make({"method": "FA+RM", "wd_weight": 0.3})
    assert (made["rm_weight"], made["wd_weight"], made["server_lr"]) == (1e-4, 0.3, 1.0)
    assert "hyper_lr" not in made.values()  # of a part that it does not have
    assert made.but({"rm_weight": 0.5, "lr": 0.2}).values() == {**made.values(), "rm_weight": 0.5, "lr": 0.2}


def test_a_file_of_version_0_1_is_read(tmp_path):
    """It had every method's settings in every run, and another name for one of them."""
    path = tmp_path / "settings.toml"
    path.write_text('method = "FA"\nrm_store = "disk"\nrm_weight = 0.0001\nentropy_min = 2.0032\n')
    assert config.make(config.read_toml(path)).store == "disk"
    path.write_text('task = "mnist"\nmethod = "FA+AH"\nrm_store = "disk"\n')
    assert config.make(config.read_toml(path)).grid == "lr = 0.05..0.5/9 log; steps = 5..45/9"  # as 0.1 had it
    path.write_text('task = "mnist"\nmethod = "FA+AH"\n')  # a person's few settings are no folder of 0.1
    assert config.make(config.read_toml(path)).grid == config.GRID
    path.write_text("version = 99\n")
    with pytest.raises(SettingsError, match="is of version 99"):
        config.read_toml(path)
