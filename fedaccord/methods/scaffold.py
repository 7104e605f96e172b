"""SCAFFOLD: stochastic controlled averaging (Karimireddy et al., 2020, Algorithm 1).

The server keeps a control variate c, each client i its own c_i; both estimate a gradient. A client's step follows
g_i(y_i) - c_i + c (Eq. 3), which takes out the direction in which its own data would drift. After K steps at rate eta_l
    c_i+ = c_i - c + (x - y_i) / (K eta_l)            (Eq. 4, option II)
    c   <- c + (|S| / N) mean_i (c_i+ - c_i)          (Eq. 5)
so that c stays the mean of all c_i, as long as only accepted rounds change a c_i.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fedaccord.core.protocols import (
    SCALAR,
    THE_GRADIENTS,
    Built,
    ClientPart,
    End,
    Mean,
    Outgoing,
    Part,
    ServerStep,
    Slot,
    Slots,
    Step,
    Work,
)
from fedaccord.core.records import Hyper, Packages, Params
from fedaccord.methods.fednova import check_countable, length_of


class Controlled(ClientPart):
    """The client side of SCAFFOLD: corrected steps, then a new control variate."""

    stacks = True

    def __init__(self, nesterov: bool):
        self.nesterov = nesterov

    def corrects(self, hyper: Hyper) -> str:
        return THE_GRADIENTS

    def correct(self, step: Step) -> None:
        """Eq. 3: replace each gradient g_i by g_i - c_i + c."""
        torch._foreach_sub_(step.gradients, step.kept["c_i"])
        torch._foreach_add_(step.gradients, step.down["c"])

    def finish(self, end: End, work: Work) -> Outgoing:
        """Eq. 4, option II: keep c_i+ and send its change. With momentum the steps add up to more than K eta_l."""
        # SCAFFOLD (Algorithm 1): plain SGD at the clients. HERE: momentum is allowed, and K is FedNova's ||a_i||_1.
        # WHY: x - y_i is eta_l times so many gradients, and c_i must stay the size of one.
        length = length_of(end.hyper.steps, end.hyper.momentum, self.nesterov) * end.hyper.lr
        new, change = {}, {}
        for name, c_i in end.kept["c_i"].items():
            new[name] = c_i - end.down["c"][name] + (end.received[name] - end.params[name]) / length
            change[name] = new[name] - c_i
        size = torch.stack([value.double().norm() for value in new.values()]).norm()
        return Outgoing(sent={"change": change, "size": {"value": size.cpu()}}, kept={"c_i": new})


class Control(ServerStep):
    """The server side of SCAFFOLD, Eq. 5: c <- c + (|S| / N) mean of the changes."""

    def apply(self, state: Packages, mean: Mean) -> tuple[Params, Packages]:
        # SCAFFOLD (Algorithm 1): x moves by the plain mean too. HERE: by examples, as line 14 has it; c by the plain
        # mean. WHY: c is to be the mean of all c_i, as NIID-Bench has it. Where every c_i is its client's gradient, all
        # step along c, so what is minimised in the end is the plain mean of the clients' losses, whatever their sizes.
        share = mean.accepted / mean.clients
        change = mean.sent["change"]
        return mean.params, {"c": {name: c + share * change[name] for name, c in state["c"].items()}}


class Scaffold(Part):
    name = "SCAFFOLD"
    about = "control variates at server and clients take the drift out of every local step"
    cost = 1.3
    replaces = "what a client's steps add up to"
    slots = Slots(
        down=(Slot("c"),),
        up=(Slot("change", weighted=False), Slot("size", SCALAR, weighted=False)),
        client=(Slot("c_i"),),
        server=(Slot("c"),),
    )

    def client(self, built: Built) -> ClientPart:
        check_countable(self.name, built)
        return Controlled(built.settings["nesterov"])

    def server(self, settings: Mapping[str, Any]) -> ServerStep:
        return Control()

    def report(self, rounds: Sequence[Mapping[str, Any]]) -> list[str]:
        sizes = [line["method"]["SCAFFOLD.size"] for line in rounds if "SCAFFOLD.size" in line.get("method", {})]
        return [f"the clients' control variates had a mean norm of {sizes[-1]:.3g} in the last round"] if sizes else []
