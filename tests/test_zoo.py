"""The example networks train with representation matching, as they are."""

from pathlib import Path

import pytest
import torch

from fedaccord import config
from fedaccord.cli import main
from fedaccord.core.algorithm import run, start
from fedaccord.core.seeds import global_seed
from fedaccord.runtime.build import from_task
from fedaccord.tasks import find_task

ZOO = Path(__file__).parent.parent / "examples" / "zoo.py"
NETWORKS = {"resnet": 6, "vgg_like": 6, "signal": 3, "transformer": 3}  # layers that are rebuilt


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_beyond_the_papers_trains_with_matching(name):
    task = find_task(f"{ZOO}:{name}")
    settings = config.make(task.defaults("iid"), {"method": "FA+RM", "split": "iid", "rounds": 4, "rm_weight": 1e-3})
    setup = from_task(task, settings)
    engine = setup.experiment.engine
    (matching,) = (client.matching for _, client in engine.site.method.parts if hasattr(client, "matching"))
    assert len(matching.f) == NETWORKS[name]
    logs = [log for _, log in run(setup.experiment, start(setup.experiment, setup.params))]
    assert all(log.guard is None and not log.refused for log in logs)
    assert logs[-1].loss < logs[0].loss
    # theta_i moved, in every matching layer: gradients reach it (line 10)
    with global_seed(settings.seed, "matching", 0, client=0):
        matching.reset_parameters()
    began, ended = matching.state_dict(), engine.store.get(0, logs[-1].round)["RM.theta"]
    assert all(not torch.equal(began[name], ended[name]) for name in ended)


@pytest.mark.parametrize("name", ["digits", f"{ZOO}:resnet"])
def test_the_matching_command_shows_layers_and_cost(name, capsys):
    assert main(["matching", name]) == 0
    text = capsys.readouterr().out
    assert "relu#1" in text
    assert "theta_i: " in text
    assert main(["matching", name, "--rm-layers", "input,nothing"]) == 2
    assert "there is no layer 'nothing'" in capsys.readouterr().err
