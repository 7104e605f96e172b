"""SCAFFOLD: stochastic controlled averaging (Karimireddy et al., 2020, Algorithm 1).

The server keeps a control variate c, each client i its own c_i; both estimate a gradient. A client's step follows
g_i(y_i) - c_i + c, which takes out the direction in which its own data would drift. After K steps at rate eta_l
    c_i+ = c_i - c + (x - y_i) / (K eta_l)            (option II)
    c   <- c + (|S| / N) mean_i (c_i+ - c_i)
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


class Controlled(ClientPart):
    """The client's side: corrected steps, then its new control variate."""

    def corrects(self, hyper: Hyper) -> str:
        return THE_GRADIENTS

    def correct(self, step: Step) -> None:
        """g_i - c_i + c."""
        torch._foreach_sub_(step.gradients, step.kept["c_i"])
        torch._foreach_add_(step.gradients, step.down["c"])

    def finish(self, end: End, work: Work) -> Outgoing:
        """Option II. With momentum a step is longer than its rate says, so K eta_l is divided by 1 - momentum."""
        # SCAFFOLD (Algorithm 1): plain SGD at the clients. HERE: momentum is allowed. WHY: x - y_i then is about
        # K eta_l / (1 - momentum) times the mean gradient, and c_i must stay the size of a gradient.
        length = end.hyper.steps * end.hyper.lr / (1 - end.hyper.momentum)
        new, change = {}, {}
        for name, c_i in end.kept["c_i"].items():
            new[name] = c_i - end.down["c"][name] + (end.received[name] - end.params[name]) / length
            change[name] = new[name] - c_i
        size = torch.stack([value.double().norm() for value in new.values()]).norm()
        return Outgoing(sent={"change": change, "size": {"value": size.cpu()}}, kept={"c_i": new})


class Control(ServerStep):
    """The server's side: c <- c + (|S| / N) mean of the changes."""

    def apply(self, state: Packages, mean: Mean) -> tuple[Params, Packages]:
        share = mean.accepted / mean.clients
        change = mean.sent["change"]
        return mean.params, {"c": {name: c + share * change[name] for name, c in state["c"].items()}}


class Scaffold(Part):
    name = "SCAFFOLD"
    about = "control variates at server and clients take the drift out of every local step"
    slots = Slots(
        down=(Slot("c"),),
        up=(Slot("change", weighted=False), Slot("size", SCALAR, weighted=False)),
        client=(Slot("c_i"),),
        server=(Slot("c"),),
    )

    def client(self, built: Built) -> ClientPart:
        return Controlled()

    def server(self, settings: Mapping[str, Any]) -> ServerStep:
        return Control()

    def report(self, rounds: Sequence[Mapping[str, Any]]) -> list[str]:
        sizes = [line["method"]["SCAFFOLD.size"] for line in rounds if "SCAFFOLD.size" in line.get("method", {})]
        return [f"the clients' control variates had a mean norm of {sizes[-1]:.3g} in the last round"] if sizes else []
