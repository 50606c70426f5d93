"""A cluster whose head may fail over.

A head and its standby run on their own hosts, a database on a third. Every host has shared memory of its own.
Heads and reserved host see one folder of runs, as they must; the preemptible host does not.
"""

from pathlib import Path

from postgres_server import PostgresServer
from two_hosts import REMOTE, Cluster, rlctl

from gleaner.chaos.netns import SHARED_MEMORY, Host
from gleaner.nodeagent.exit_codes import CannotRun
from gleaner.nodeagent.files import find_agent
from gleaner.rlctl.audit.invariants import Evidence
from gleaner.rlctl.audit.run_files import gather
from gleaner.rlctl.runs import RunDir

HEADS = ("head", "head-2")
LEASE_S = 8.0


class FailoverCluster(Cluster):
    """See the module. A context manager."""

    def __init__(self, root: Path, model: Path) -> None:
        super().__init__(root, model)
        made = rlctl("keygen", str(root / "keys"), "--node", HEADS[1])
        assert made.returncode == 0, made.stderr
        self.places: dict[str, Host] = {"head": self.home, REMOTE: self.away}
        for node in (HEADS[1], "reserved-1", "database"):
            self.places[node] = self.switch.host(node, private=(SHARED_MEMORY,))
        database = self.places["database"]
        self.database = PostgresServer(database.address, database.inside([]))
        self.database.start()

    @property
    def url(self) -> str:
        """The URL of the journals."""
        return self.database.url()

    def address(self, head: str) -> str:
        """The endpoint on which a head listens."""
        return f"tcp://{self.places[head].address}:7700"

    def up(self) -> None:
        """Start everything; the second head is the standby."""
        self.start_head()
        self.start_standby(HEADS[1])
        self.join("reserved-1", self.places["reserved-1"], "--role", "reserved")
        self.join(REMOTE, self.away)

    def start_head(self) -> None:
        """The first head."""
        self.start(HEADS[0], self.home, *self._lead(HEADS[0]))

    def start_standby(self, head: str) -> None:
        """Start a standby head."""
        self.start(head, self.places[head], *self._lead(head), "--standby")

    def leads(self, head: str) -> bool:
        """Whether this head leads now."""
        try:
            return find_agent(self.state(head)).role == "head"
        except CannotRun:
            return False

    def isolate(self, node: str) -> None:
        """Cut a host off from all others: everything that is sent is dropped without a notice."""
        for place in self.places.values():
            if place is not self.places[node]:
                self.switch.cut(self.places[node], place)
        self.switch.cut(self.places[node], self.laptop)

    def join(self, node: str, host: Host, *options: str) -> None:
        """Start a node that joins the leading head."""
        listen = ("--listen", f"tcp://{host.address}:0", "--bulk", "clear")
        joins = [word for head in HEADS for word in ("--join", self.address(head))]
        keys = [word for head in HEADS for word in ("--head-key", str(self.keys(head) / "node.public"))]
        self.start(node, host, *joins, *keys, *listen, *options)

    def access(self) -> list[str]:
        """The options by which the laptop reaches the cluster."""
        keys = ",".join(str(self.keys(head) / "node.public") for head in HEADS)
        heads = ",".join(map(self.address, HEADS))
        return ["--head", heads, "--head-key", keys, "--keys", str(self.keys("laptop"))]

    def books(self) -> list[str]:
        """The options by which the laptop finds the journals."""
        return ["--state-dir", str(self.state("reserved-1")), "--journal", self.url]

    def evidence(self, run: RunDir, *, complete: bool) -> Evidence:
        """The evidence in the database and in the reserved host's journal. The head has no journal of its
        own."""
        assert not list(self.state("head").glob("journal/**/*.sqlite"))
        states = [self.state("reserved-1")]
        return gather(
            run.path, run.config(), complete=complete, state_dirs=states, database=self.database.local_url()
        )

    def _lead(self, head: str) -> list[str]:
        lease = ["--journal", self.url, "--lease", str(LEASE_S)]
        return ["--role", "head", "--listen", self.address(head), *lease]

    def __exit__(self, *problem: object) -> None:
        self.database.close()
        super().__exit__(*problem)
