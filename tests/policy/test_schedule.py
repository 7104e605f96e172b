import torch
from helpers import seen

from fedaccord.core.records import Hyper
from fedaccord.policy.schedule import FixedSchedule


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
