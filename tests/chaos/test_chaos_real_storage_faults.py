"""Full shared memory of a host.

No image fits into it while the fault lasts, its contents stay, and the machine's own memory is not used.
"""

from collections.abc import Iterator

import pytest

from gleaner.chaos.netns import SHARED_MEMORY, Host, Switch, why_not
from gleaner.chaos.real.faults import MemoryFull
from gleaner.chaos.real.storage_faults import fill_memory, unfinished_images

pytestmark = [
    pytest.mark.realprocess,
    pytest.mark.skipif(bool(why_not()), reason=f"no network namespaces: {why_not()}"),
]


@pytest.fixture
def host() -> Iterator[Host]:
    with Switch() as switch:
        yield switch.host("one", private=(SHARED_MEMORY,))


def written(host: Host, name: str) -> bool:
    return host.run(["sh", "-c", f"head -c 100000 /dev/zero >/dev/shm/{name}"], 30.0).returncode == 0


def test_full_memory_takes_nothing_until_freed(host: Host) -> None:
    assert written(host, "before")
    strike = fill_memory(host, MemoryFull(at_s=0, host="one", for_s=1.0))
    assert not written(host, "meanwhile")
    assert (host.path(SHARED_MEMORY) / "before").stat().st_size == 100_000
    assert strike.mend()["filled_bytes"] > 0
    assert written(host, "after")


def test_unfinished_image_is_seen_and_whole_one_not(host: Host) -> None:
    memory = host.path(SHARED_MEMORY)
    for folder in ("v000000001", "v000000002.7.ab.draft"):
        (memory / "gleaner-run-spot-1" / "weights" / folder).mkdir(parents=True)
        (memory / "gleaner-run-spot-1" / "weights" / folder / "model.safetensors").write_bytes(b"x")
    assert unfinished_images(memory) == 1
