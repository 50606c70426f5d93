"""Statistics of pulled versions: each pull counts once, summed over a run."""

from gleaner.actors.protocol.instances import Pulled, RegisterInstance, Serving
from gleaner.actors.rollout.fleet.instance_table import Instances
from gleaner.supervisor import Address


def registered(instances: Instances, name: str) -> None:
    worker = Address(name=name, endpoint="tcp://127.0.0.1:1", incarnation=1)
    message = RegisterInstance(instance=name, worker=worker, kind="preemptible", slots=4, received=0)
    instances.register(message, "epoch", 0.0)


def serving(name: str, version: int, pulled: Pulled | None) -> Serving:
    return Serving(instance=name, incarnation=1, version=version, root=b"root", pulled=pulled)


def test_deltas_and_images_are_summed_apart_and_once() -> None:
    instances = Instances()
    for name in ("a", "b"):
        registered(instances, name)
    reports = [
        ("a", 1, Pulled(1000, 1000, 0)),
        ("a", 2, Pulled(10, 1000, 1)),
        ("a", 2, Pulled(10, 1000, 1)),  # the first report was not answered in time
        ("b", 2, None),  # the version was already there
        ("b", 4, Pulled(30, 1000, 2)),
    ]
    for name, version, pulled in reports:
        instances.serves(instances[name], serving(name, version, pulled))
    assert dict(instances.pulled) == {
        "whole_versions": 1,
        "whole_bytes": 1000,
        "delta_versions": 2,
        "delta_bytes": 40,
        "image_bytes": 3000,
    }
