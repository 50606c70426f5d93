"""`rlctl gateway`: one URL in front of running inference servers."""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import msgspec

from gleaner.configs.load import ConfigError, load
from gleaner.configs.schema import Config
from gleaner.nodeagent.files import make_private
from gleaner.nodeagent.host import ProcessLocation, run_process
from gleaner.nodeagent.host_services import RealHostServices
from gleaner.rlctl.commands.terminal import Subparsers, add_command, add_json
from gleaner.rlctl.errors import usage

_DESCRIPTION = """\
Fault-tolerant proxy for your own SGLang or vLLM servers: serves the APIs of SGLang, OpenAI and vLLM at one
address.

When a server dies in the middle of a response, another one continues it from its last token, and the client
only notices a pause. Servers may join and leave: POST /workers and DELETE /workers/ID, as with
sglang-router."""

_EXAMPLES = """\
  rlctl gateway --engine-url http://10.0.0.5:30000 --engine-url http://10.0.0.6:30000
  rlctl gateway --engine-url http://127.0.0.1:30000 --listen 0.0.0.0:8000 --api-keys keys.txt
  rlctl gateway --engine-url http://127.0.0.1:30000 --config gateway.toml --set gateway.max_concurrent=4096
  curl -N http://127.0.0.1:30080/generate -d '{"input_ids": [1, 2, 3], "stream": true}'"""

LISTEN = "127.0.0.1:30080"


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "gateway",
        gateway,
        description=_DESCRIPTION,
        examples=_EXAMPLES,
    )
    parser.add_argument(
        "--engine-url",
        action="append",
        default=[],
        metavar="URL",
        help="URL of a server; may be repeated, or separated by commas",
    )
    parser.add_argument(
        "--config", metavar="FILE", help="TOML with a section [gateway]: see docs/configuration.md"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="gateway.A=B", help="one setting over the file's"
    )
    parser.add_argument(
        "--listen", metavar="HOST:PORT", help=f"gateway.listen; port 0: any free one (default: {LISTEN})"
    )
    parser.add_argument("--api-keys", type=Path, metavar="FILE", help="gateway.api_keys: one key a line")
    parser.add_argument(
        "--open", action="store_true", help="gateway.open: serve beyond loopback without keys"
    )
    parser.add_argument(
        "--tokenizer",
        metavar="DIR",
        default="",
        help="tokenizer for text (default: the first server's, if on this machine)",
    )
    parser.add_argument(
        "--state-dir",
        type=Path,
        metavar="DIR",
        help="keep journal and log here (default: they are removed at the end)",
    )
    parser.add_argument(
        "--deadline", type=float, metavar="S", help="gateway.deadline_s: of a request without its own"
    )
    add_json(parser)


def gateway(args: argparse.Namespace) -> int:
    """Run the command."""
    from gleaner.actors.gateway.engine_url import BadUrl, origin  # here: only this command needs HTTP
    from gleaner.nodeagent.gateway_http import address_of
    from gleaner.nodeagent.standalone_gateway import GatewayOptions, run_gateway

    given = [url.strip() for text in args.engine_url for url in str(text).split(",")]
    if not given:
        raise usage("--engine-url: name at least one server, like http://10.0.0.5:30000")
    try:
        engines = [origin(url) for url in given]
        config = settings_of(args)
        address_of(config.gateway.listen)
    except BadUrl as problem:
        raise usage(f"--engine-url {problem}") from problem
    except ConfigError as problem:
        raise usage(*problem.problems) from problem
    if args.tokenizer and not (Path(args.tokenizer) / "tokenizer.json").is_file():
        raise usage(f"--tokenizer {args.tokenizer}: no tokenizer.json is there")

    def announce(url: str, first: str) -> None:
        if args.json:
            sys.stdout.write(json.dumps({"url": url, "engines": engines}) + "\n")
        else:
            others = f" and {len(engines) - 1} more" if len(engines) > 1 else ""
            sys.stdout.write(f"serving at {url}, in front of {first}{others}\n")
        sys.stdout.flush()

    with tempfile.TemporaryDirectory(prefix="gleaner-gateway-") as passing:
        state_dir = (args.state_dir or Path(passing)).absolute()
        make_private(state_dir)  # journal and log contain the prompts and responses of clients
        location = ProcessLocation("gateway", "gateway", state_dir)
        options = GatewayOptions(location, engines, config, args.tokenizer, announce)
        return run_process(lambda stop: run_gateway(options, stop, RealHostServices()), "rlctl gateway")


def settings_of(args: argparse.Namespace) -> Config:
    """The settings of the file and of `--set`, overridden by the options. Raises ConfigError,
    CommandError."""
    config, defaults = load(args.config, args.set), Config()
    for section in config.__struct_fields__:
        if section != "gateway" and getattr(config, section) != getattr(defaults, section):
            raise usage(f"[{section}]: of a job; `rlctl gateway` takes the section [gateway] alone")
    own = config.gateway
    given: dict[str, object] = {"listen": args.listen or own.listen or LISTEN, "open": args.open or own.open}
    if args.api_keys is not None:
        given["api_keys"] = str(args.api_keys.absolute())
    if args.deadline is not None:
        if not 0 < args.deadline <= own.max_deadline_s:
            raise usage(f"--deadline {args.deadline:g}: expected seconds up to {own.max_deadline_s:g}")
        given["deadline_s"] = args.deadline
    return msgspec.structs.replace(config, gateway=msgspec.structs.replace(own, **given))
