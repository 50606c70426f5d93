"""`rlctl reward serve`: scores responses over HTTP, for trainers that are not Gleaner's."""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from gleaner.rlctl.commands.terminal import Subparsers, add_command, add_json
from gleaner.rlctl.errors import usage

if TYPE_CHECKING:
    from gleaner.configs.schema import Config
    from gleaner.nodeagent.reward_service_hosts import HostOptions
    from gleaner.nodeagent.shutdown import Shutdown
    from gleaner.transport.wire import Peer

_DESCRIPTION = """\
Score responses over HTTP with the verifiers of a job's settings, in sandboxed worker processes, without a
training job. It speaks the reward protocols of slime (/rm), OpenRLHF (/get_reward), verl (/compute_score) and
ROLL (/v1/submit_task, /v1/task_result), and runs programs as SandboxFusion does (/run_code). GET
/openapi.json describes them all (docs/rewards.md).

Each request brings its problem: prompt, label, tests. It names a task of the settings by ?task=NAME where
there are several. A failure of the service is answered 503 with its reason, never with a score; a queue at
its limit 429.

Keys and limits are those of the section [gateway] of the settings. Without a key it listens on loopback
only. Ctrl-C or SIGTERM ends it in order."""

_EXAMPLES = """\
  rlctl reward serve job.toml
  rlctl reward serve job.toml --listen 0.0.0.0:8900 --api-keys keys.txt --workers 16
  rlctl reward serve job.toml --hosts 2
  rlctl reward serve job.toml --join-listen tcp://10.0.0.1:7700 --keys keys/service
  curl http://127.0.0.1:8900/rm -d '{"prompt": "1+1?", "response": "It is 2", "label": "2"}'"""

LISTEN = "127.0.0.1:8900"
MOST_HOSTS = 64


def add(kinds: Subparsers) -> None:
    """Declare the command below `rlctl reward`."""
    parser = add_command(
        kinds, "serve", serve, help="score over HTTP", description=_DESCRIPTION, examples=_EXAMPLES
    )
    parser.add_argument("config", metavar="CONFIG", help="settings: a TOML file or a preset")
    parser.add_argument(
        "--set", action="append", default=[], metavar="A.B=C", help="one setting over the file's"
    )
    parser.add_argument(
        "--listen", metavar="HOST:PORT", default=LISTEN, help=f"port 0: any free one (default: {LISTEN})"
    )
    parser.add_argument("--workers", type=int, metavar="N", help="reward.workers: worker processes")
    parser.add_argument("--api-keys", type=Path, metavar="FILE", help="gateway.api_keys: one key a line")
    parser.add_argument(
        "--open", action="store_true", help="gateway.open: serve beyond loopback without keys"
    )
    parser.add_argument(
        "--state-dir",
        type=Path,
        metavar="DIR",
        help="keep the log here (default: it is removed at the end)",
    )
    parser.add_argument(
        "--hosts", type=int, default=0, metavar="N", help="reward hosts to start here, as processes"
    )
    parser.add_argument(
        "--join-listen",
        metavar="ADDR",
        default="",
        help="address at which reward hosts join (nodeagent start --role reward), tcp://HOST:PORT; beyond "
        "loopback --keys is needed",
    )
    parser.add_argument(
        "--keys", type=Path, metavar="DIR", help="key directory for its hosts, made by `rlctl keygen`"
    )
    add_json(parser)


def serve(args: argparse.Namespace) -> int:
    """Run the command."""
    from gleaner.actors.reward.source import BadTask  # here: only this command needs HTTP
    from gleaner.configs.load import ConfigError
    from gleaner.nodeagent.exit_codes import USAGE, CannotRun
    from gleaner.nodeagent.files import make_private
    from gleaner.nodeagent.gateway_http import address_of
    from gleaner.nodeagent.host import ProcessLocation, run_process
    from gleaner.nodeagent.host_services import RealHostServices
    from gleaner.nodeagent.standalone_rewards import RewardServiceOptions, run_reward_service

    try:
        config = settings_of(args)
        address_of(config.gateway.listen)
        hosts = hosts_of(args)
    except ConfigError as problem:
        raise usage(*problem.problems) from problem

    def announce(url: str, tasks: list[str], join: "Peer | None") -> None:
        if args.json:
            joined = {"join": join.endpoint, "head_key": join.public_key} if join is not None else {}
            sys.stdout.write(json.dumps({"url": url, "tasks": tasks, **joined}) + "\n")
        else:
            sys.stdout.write(f"scoring at {url}, tasks: {', '.join(tasks)}\n")
        if join is not None and not args.json:
            key = f" --keys DIR --head-key '{join.public_key}'" if join.public_key else ""
            sys.stdout.write(f"hosts join: nodeagent start --role reward --join {join.endpoint}{key}\n")
        sys.stdout.flush()

    async def run(stop: "Shutdown") -> int:
        try:
            return await run_reward_service(options, stop, RealHostServices())
        except BadTask as problem:
            raise CannotRun(USAGE, str(problem)) from problem

    with tempfile.TemporaryDirectory(prefix="gleaner-rewards-") as passing:
        state_dir = (args.state_dir or Path(passing)).absolute()
        make_private(state_dir)
        options = RewardServiceOptions(
            ProcessLocation("rewards", "rewards", state_dir), config, announce, hosts
        )
        return run_process(run, "rlctl reward serve")


def hosts_of(args: argparse.Namespace) -> "HostOptions | None":
    """The reward hosts that the options ask for; None: none. Raises CommandError."""
    from gleaner.nodeagent.host import LOOPBACK
    from gleaner.nodeagent.reward_service_hosts import HostOptions
    from gleaner.transport.endpoint import endpoint

    if not 0 <= args.hosts <= MOST_HOSTS:
        raise usage(f"--hosts {args.hosts}: expected 0 to {MOST_HOSTS}")
    if not args.hosts and not args.join_listen:
        if args.keys is not None:
            raise usage("--keys: are of reward hosts: give --hosts or --join-listen too")
        return None
    try:
        listen = endpoint(args.join_listen or LOOPBACK)
    except ValueError as problem:
        raise usage(f"--join-listen {problem}") from problem
    keys = args.keys.absolute() if args.keys is not None else None
    return HostOptions(local=args.hosts, listen=listen, keys=keys)


def settings_of(args: argparse.Namespace) -> "Config":
    """The settings of the file and of `--set`, overridden by the options. Raises ConfigError,
    CommandError."""
    import msgspec

    from gleaner.configs.load import load
    from gleaner.nodeagent.model_discovery import NoModel, with_judge

    try:
        config = with_judge(load(args.config, args.set))
    except NoModel as problem:
        raise usage(str(problem)) from problem
    own: dict[str, object] = {"listen": args.listen, "open": args.open or config.gateway.open}
    if args.api_keys is not None:
        own["api_keys"] = str(args.api_keys.absolute())
    gateway = msgspec.structs.replace(config.gateway, **own)
    reward = config.reward
    if args.workers is not None:
        if args.workers < 1:
            raise usage(f"--workers {args.workers}: expected 1 or more")
        reward = msgspec.structs.replace(reward, workers=args.workers)
    return msgspec.structs.replace(config, gateway=gateway, reward=reward)
