"""FA: federated averaging (McMahan et al., 2016), the base of the paper's methods."""

from fedaccord.core.protocols import Part


class FedAvg(Part):
    """Clients minimise the task's loss; the server takes the weighted mean. Nothing is added to either."""

    name = "FA"
    about = "federated averaging: local steps of SGD, then the weighted mean"
