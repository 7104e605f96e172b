"""Names and parts: which methods there are, and what cannot be joined."""

import re

import pytest

from fedaccord import Method, Part
from fedaccord.core.errors import SettingsError
from fedaccord.core.records import Hyper
from fedaccord.methods.registry import METHODS, PARTS, as_method, find


def test_every_listed_method_is_found_and_every_part_says_what_it_does():
    for name in METHODS:
        assert find(name).name == name
    assert all(len(part.about) > 15 and part.name == name for name, part in PARTS.items())


def test_parts_that_make_sense_can_be_joined():
    assert [part.name for part in find("SCAFFOLD+RM+AH").parts] == ["SCAFFOLD", "RM", "AH"]


@pytest.mark.parametrize(
    ("name", "says"), [("FA+XX", "there is no 'XX'"), ("FA+FA", "named twice"), ("", "there is no")]
)
def test_a_name_that_means_nothing_is_one_clear_line(name, says):
    with pytest.raises(SettingsError, match=says):
        find(name)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("FedLC+FedRS", "the clients' cross-entropy"),
        ("FA+FedRS+RM+FedLC", "the clients' cross-entropy"),
        ("FedAdam+FedYogi", "the server's optimizer"),
        ("FedAvgM+FedAdam+AH", "the server's optimizer"),
        ("FedDyn+FedExP", "the length of the server's step"),
        ("SCAFFOLD+DeltaSGD", "what a client's steps add up to"),
    ],
)
def test_parts_that_replace_the_same_thing_are_one_clear_line(name, what):
    with pytest.raises(
        SettingsError, match=rf"^method {re.escape(name)}: \w+ and \w+ cannot be joined, .*{what}"
    ) as told:
        find(name)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    "name", ["FixedHead+FedLC", "FixedHead+FedRS", "FedLC+FedNTD", "SCAFFOLD+FedExP", "FedAvgM+WD"]
)
def test_parts_that_replace_different_things_can_be_joined(name):
    """A fixed head fixes the class vectors; calibration changes what the layers below are taught: both have a say."""
    assert find(name).name == name


def test_a_file_is_another_way(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from fedaccord import Part\nclass Mine(Part):\n    name = 'Mine'\nmine = Mine()\n"
    )
    assert find(f"{tmp_path / 'mine.py'}:mine").name == "Mine"
    for wrong, says in (("mine.py:other", "'other' is missing"), ("mine.py:Mine", "not a fedaccord Method or Part"),
                        ("gone.py:mine", "no such Python file")):  # fmt: skip
        with pytest.raises(SettingsError, match=says):
            find(str(tmp_path / wrong))


def test_two_policies_in_one_method_are_refused():
    class Other(Part):
        name = "Other"

        def policy(self, first, settings):
            return object()

    both = Method("both", (Other(), Other()))
    with pytest.raises(SettingsError, match="two of its parts choose the hyper-parameters"):
        both.policy(Hyper(0.1, 1), {}, None)
    assert as_method(Other()).name == "Other"
