import torch
from helpers import seen

from fedaccord.core.protocols import Proposal
from fedaccord.core.records import Hyper
from fedaccord.policy.schedule import FixedSchedule, Passes, Replay


def test_both_decays_by_hand():
    schedule = FixedSchedule(Hyper(lr=0.8, steps=10, momentum=0.5), lr_decay=0.5, steps_decay=0.7)
    drawn = [schedule.propose({}, t, (0,), torch.Generator())[0].hyper for t in (1, 2, 3, 9)]
    assert [h.lr for h in drawn] == [0.8, 0.4, 0.2, 0.8 / 256]
    assert [h.steps for h in drawn] == [10, 7, 5, 1]  # 10, 7, 4.9, 0.58 -> at least 1
    assert all(h.momentum == 0.5 for h in drawn)


def test_rewards_change_nothing():
    schedule = FixedSchedule(Hyper(lr=0.1, steps=1))
    state = schedule.start()
    assert schedule.learn(state, seen(-3.0)) == state


def test_passes_over_ones_own_data_by_hand():
    """Batches of 4; clients of 8, 9, none, 3 and 40 examples have 2, 3, -, 1 and 10 batches."""
    fixed = FixedSchedule(Hyper(lr=0.8, steps=7, batch_size=4), lr_decay=0.5)
    once, _ = Passes(fixed, 1.0, dict(enumerate((8, 9, 0, 3, 40)))).propose({}, 2, (0, 1, 2, 3, 4), torch.Generator())
    assert {client: own.steps for client, own in once.each.items()} == {0: 2, 1: 3, 3: 1, 4: 10}
    assert once.hyper.steps == 4  # the mean of 2, 3, 1 and 10
    assert {own.lr for own in (*once.each.values(), once.hyper)} == {0.4}
    part, _ = Passes(fixed, 0.25, dict(enumerate((8, 9, 0, 3, 40))), 0.5).propose({}, 1, (0, 1, 4), torch.Generator())
    assert {client: own.steps for client, own in part.each.items()} == {0: 1, 1: 1, 4: 3}  # 0.5, 0.75 and 2.5
    late, _ = Passes(fixed, 2.0, dict(enumerate((8, 9, 0, 3, 40))), 0.5).propose({}, 3, (3, 4), torch.Generator())
    assert {client: own.steps for client, own in late.each.items()} == {3: 1, 4: 5}  # 2 and 20, times a quarter


def test_passes_leave_the_rest_to_the_policy_that_they_wrap():
    class Other(FixedSchedule):
        names = ("lr",)

        def start(self):
            return {"learned": 0}

        def learn(self, state, seen):
            return {"learned": state["learned"] + 1}

        def describe(self, before, after):
            return {"why": "because"}

    passes = Passes(Other(Hyper(0.1, 1)), 1.0, {0: 8})
    assert passes.names == ("lr", "steps")
    assert passes.learn(passes.start(), seen(1.0)) == {"learned": 1}
    assert passes.describe({}, {}) == {"why": "because"}


def test_passes_keep_the_values_that_each_client_has_of_its_own():
    class Each(FixedSchedule):
        def propose(self, state, round, cohort, generator):
            given, state = super().propose(state, round, cohort, generator)
            return Proposal(given.hyper, {1: given.hyper.but({"lr": 0.7})}), state

    passes = Passes(Each(Hyper(0.1, 1, batch_size=4)), 1.0, {0: 8, 1: 12})
    proposal, _ = passes.propose({}, 1, (0, 1), torch.Generator())
    assert {client: (own.lr, own.steps) for client, own in proposal.each.items()} == {0: (0.1, 2), 1: (0.7, 3)}


def test_a_replay_that_is_longer_than_its_recording_keeps_the_last_values():
    replay = Replay(Hyper(0.1, 1), recorded=({"lr": 0.5, "steps": 2}, {"lr": 0.25, "steps": 2}))
    drawn = [replay.propose({}, t, (0,), torch.Generator())[0].hyper.lr for t in (1, 2, 5)]
    assert drawn == [0.5, 0.25, 0.25]
