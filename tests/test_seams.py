"""What a method, a policy and the engines may rely on at the seams, beyond the examples of docs/extend.md."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from fedaccord import ClientPart, End, Outgoing, Part, Slot, Slots, Work, config, federate
from fedaccord.cli import main
from fedaccord.core.errors import MethodError, RunError, SettingsError
from fedaccord.methods.registry import find
from fedaccord.policy.schedule import FixedSchedule
from fedaccord.runtime.build import policy_of
from fedaccord.runtime.folder import client_steps
from fedaccord.runtime.identity import params_sha256


@pytest.fixture
def clients():
    draw = torch.Generator().manual_seed(0)
    return [(torch.randn(12, 4, generator=draw), torch.arange(12) % 3) for _ in range(3)]


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Linear(4, 3)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["at.round", "at.client", "float(at.down['scale']['value'])"])
def test_a_term_with_a_number_of_its_round_or_client_is_not_stacked(tmp_path, capsys, what):
    """The traced graph would keep the first round's number for ever; a part that says otherwise is found out."""
    (tmp_path / "numbered.py").write_text(NUMBERED.replace("NUMBER", what))

    def run(engine):
        words = ["run", "digits", "--method", f"{tmp_path / 'numbered.py'}:numbered", "--engine", engine]
        return main([*words, "--rounds", "2", "--runs", str(tmp_path), "--json"])

    assert run("stacked") == 2
    assert "depends on the round, the client or a number that is sent" in capsys.readouterr().err
    assert run("auto") == 0


NUMBERED = """
from fedaccord import ClientPart, Part, ServerStep, Slot, Slots, Work


class Numbered(ClientPart):
    stacks = True  # which is not so

    def begin(self, at):
        number = NUMBER
        work = Work()
        work.term = lambda inputs, output, targets: (1 + number) * 1e-3 * output.square().mean()
        return work


class Server(ServerStep):
    pass


class Method(Part):
    name = "Numbered"
    slots = Slots(down=(Slot("scale", "scalar"),), server=(Slot("scale", "scalar"),))

    def client(self, built):
        return Numbered()

    def server(self, settings):
        return Server()


numbered = Method()
"""


class Leaky(ClientPart):
    """Sends whatever `sent` makes of the weights."""

    def __init__(self, sent):
        self.sent = sent

    def finish(self, end: End, work: Work) -> Outgoing:
        return Outgoing(sent=self.sent(dict(end.params)))


class LeakyMethod(Part):
    name = "Leaky"
    slots = Slots(up=(Slot("mean"),))

    def __init__(self, sent):
        self.sent = sent

    def client(self, built):
        return Leaky(self.sent)


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (
            lambda w: {"mean": {**w, "data": torch.ones(8, 4)}},
            "'Leaky.mean': names differ from those of the declared",
        ),
        (lambda w: {"mean": {n: v[:1] for n, v in w.items()}}, "'Leaky.mean': weight has shape"),
        (lambda w: {"mean": {n: v.double() for n, v in w.items()}}, "'Leaky.mean': weight has type"),
        (lambda w: {"mean": w, "more": w}, "'Leaky.more', which it did not declare"),
    ],
)
def test_what_a_method_did_not_declare_does_not_leave_the_client(clients, model, sent, why):
    with pytest.raises(MethodError, match=f"sends up {why}"):
        federate(model, clients, clients[0], method=LeakyMethod(sent), rounds=1, engine="serial")


class Apart(FixedSchedule):
    """Client 1 has a rate of its own."""

    def propose(self, state, round, cohort, generator):
        proposal, state = super().propose(state, round, cohort, generator)
        return replace(proposal, each={1: self.first.but({"lr": 0.25 / round})}), state


class Own(Part):
    name = "Own"

    def policy(self, first, settings):
        return Apart(first)


def test_a_choice_for_one_client_is_in_the_log_and_can_be_replayed(clients, model, tmp_path):
    first = federate(model, clients, clients[0], method=Own(), rounds=3, engine="serial", folder=tmp_path / "run")
    assert [log.clients["1"]["hyper"]["lr"] for log in first.rounds] == [0.25, 0.125, 0.25 / 3]
    assert all("hyper" not in log.clients["0"] for log in first.rounds)
    again = federate(model, clients, clients[0], method="FA", rounds=3, engine="serial", replay=str(tmp_path / "run"))
    assert params_sha256(again.state.params) == params_sha256(first.state.params)


def test_passes_give_every_client_steps_of_its_own(clients, model, tmp_path):
    """Batches of 5: 12 examples have 3, 6 have 2. Two passes, so 6 and 4 steps; a run with a client's steps for all
    ends elsewhere, a replay in the same place."""
    x, y = clients[2]
    clients = [*clients[:2], (x[:6], y[:6])]
    plain = {"validation": clients[0], "method": "FA", "rounds": 2, "engine": "serial", "batch_size": 5}
    run = federate(model, clients, epochs=2, **plain, folder=tmp_path / "run")
    for log in run.rounds:
        assert [log.clients[n]["hyper"]["steps"] for n in "012"] == [6, 6, 4]
        assert client_steps(log.__dict__, 99) == 16
    assert client_steps({"hyper": {"lr": 1.0}, "clients": {"0": {}, "4": {}}}, 7) == 14
    assert client_steps({"hyper": {"steps": 8}, "clients": {"0": {}, "4": {"done": 0.375}}}, 7) == 11
    again = federate(model, clients, **plain, replay=str(tmp_path / "run"))
    assert params_sha256(again.state.params) == params_sha256(run.state.params)
    other = federate(model, clients, steps=6, **plain)
    assert params_sha256(other.state.params) != params_sha256(run.state.params)


def test_passes_beside_a_tuner_are_refused_if_it_chooses_the_steps(clients, model):
    plain = {"validation": clients[0], "rounds": 2, "engine": "serial", "epochs": 2.0}
    with pytest.raises(SettingsError, match=r"epochs: FA\+AH chooses steps itself"):
        federate(model, clients, method="FA+AH", **plain)
    made = federate(model, clients, method="FA+AH", grid="lr = 0.01..1/9 log", batch_size=12, **plain)
    assert [log.hyper["steps"] for log in made.rounds] == [2, 2]
    settings = config.make({"epochs": 2.0})
    with pytest.raises(SettingsError, match="epochs = 2: in a real federation the server does not know"):
        policy_of(settings, find("FA"))
    with pytest.raises(SettingsError, match=r"epochs = 2: FA\+AH chooses steps itself; take steps out of its grid"):
        policy_of(config.make({"epochs": 2.0, "method": "FA+AH", "clients": 3}), find("FA+AH"), [3, 3, 3])


def test_a_method_that_no_name_finds_goes_on_in_its_folder(clients, model, tmp_path):
    plain = {"method": Own(), "rounds": 3, "engine": "serial"}
    straight = federate(model, clients, clients[0], **plain)
    for _ in range(2):
        again = federate(model, clients, clients[0], **plain, folder=tmp_path / "run")
        assert params_sha256(again.state.params) == params_sha256(straight.state.params)
    with pytest.raises(RunError, match="other settings"):
        federate(model, clients, clients[0], **plain, folder=tmp_path / "run", batch_size=5)
