"""`rlctl engine serve`: builtin engine behind SGLang's protocol, as one process.

Owns the arguments, the signals and the exit code. The server is `gleaner.actors.engine.builtin_server`; it is
imported at its start, because it needs torch.
"""

import argparse
import asyncio
import logging
import secrets
import socket
import sys
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, cast

from gleaner.rlctl.commands.terminal import Subparsers, add_command, run_async
from gleaner.rlctl.errors import OK, failed, usage
from gleaner.rlctl.interrupt import Interrupt

if TYPE_CHECKING:
    from gleaner.actors.engine.builtin_server.process import Settings

_DESCRIPTION = """\
Serve a model with the builtin engine, in SGLang's protocol. Any client of an SGLang server can be tried on a
laptop, without a GPU and without SGLang. Ready in a few seconds; one process, which leaves nothing.

`POST /generate` (tokens or text, at once or streamed, log-probs, batches), /abort_request, /pause_generation,
/continue_generation, /update_weights_from_disk, /flush_cache, /health, /health_generate, /model_info,
/server_info, /v1/loads, /metrics. For the differences from SGLang see docs/engines.md.

Ctrl-C or SIGTERM: new requests are refused, running ones have --grace seconds to end and then end with the
tokens that they have. A second one ends them at once."""

_EXAMPLES = """\
  rlctl engine serve --model my-model                      a model of `rlctl model new`, or any Qwen3 folder
  rlctl engine serve --model my-model --listen 127.0.0.1:30001 --slots 8
  curl -s localhost:30000/generate -d '{"text": "hello", "sampling_params": {"max_new_tokens": 8}}'
  rlctl engine serve --model my-model --listen 10.0.0.5:30000 --api-key-file key.txt"""

DEFAULT_LISTEN = "127.0.0.1:30000"


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "engine",
        serve,
        description=_DESCRIPTION,
        examples=_EXAMPLES,
    )
    kinds = cast(Subparsers, parser.add_subparsers(dest="what", required=True, metavar="serve"))
    one = add_command(
        kinds,
        "serve",
        serve,
        help="serve with the builtin engine",
        description=_DESCRIPTION,
        examples=_EXAMPLES,
    )
    one.add_argument(
        "--model", type=Path, required=True, metavar="DIR", help="a Hugging Face folder of a Qwen3 model"
    )
    one.add_argument(
        "--listen",
        default=DEFAULT_LISTEN,
        metavar="HOST:PORT",
        help=f"address of the server (default: {DEFAULT_LISTEN}; port 0: a free one)",
    )
    one.add_argument(
        "--slots", type=int, default=32, metavar="N", help="requests decoded together (default: 32)"
    )
    one.add_argument(
        "--max-tokens",
        type=int,
        metavar="N",
        help="tokens of prompt and response together (default: the model's positions, at most 2048)",
    )
    one.add_argument("--threads", type=int, default=1, metavar="N", help="CPU threads (default: 1)")
    one.add_argument(
        "--exact",
        action="store_true",
        help="give a request the same bits whatever other requests run; slower, one thread",
    )
    one.add_argument(
        "--reserve-mb",
        type=int,
        default=0,
        metavar="N",
        help="memory of the device for weights, cache and activations; layers that do not fit are streamed "
        "from the host (default: all are resident, on the host)",
    )
    one.add_argument(
        "--device",
        choices=["cpu", "cuda"],
        default="cpu",
        help="where --reserve-mb is and the model computes (default: cpu)",
    )
    one.add_argument(
        "--weight-version", default="default", metavar="NAME", help="name of the weights in DIR (default)"
    )
    one.add_argument(
        "--served-model-name", default="", metavar="NAME", help="name of the model for clients (default: DIR)"
    )
    one.add_argument(
        "--random-seed",
        type=int,
        metavar="N",
        help="seed of requests without sampling_seed (default: random)",
    )
    one.add_argument(
        "--grace",
        type=float,
        default=5.0,
        metavar="S",
        help="time for running requests at the end (default: 5)",
    )
    one.add_argument(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help="file with the key that clients send as `Authorization: Bearer`; needed beyond this machine",
    )


def serve(args: argparse.Namespace) -> int:
    """Run the command."""
    host, port = _listen(args.listen)
    key = _key(args.api_key_file)
    if key is None and not ip_address(host).is_loopback:
        raise usage(f"--listen {args.listen} can be reached by others: give --api-key-file FILE")
    if not args.model.is_dir():
        raise usage(f"--model {args.model} is no directory: give a Hugging Face checkpoint directory")
    for name in ("slots", "max_tokens", "threads"):
        if (value := getattr(args, name)) is not None and value < 1:
            raise usage(f"--{name.replace('_', '-')} {value}: expected a number from 1")
    if not 0 <= args.grace <= 3600:
        raise usage(f"--grace {args.grace:g}: expected 0 to 3600")
    if args.exact and args.threads != 1:
        raise usage("--exact computes on one thread: leave --threads out")
    _require_reserve(args)
    sock = _bound(host, port)  # a port in use is reported before the model is read
    from gleaner.actors.engine.builtin.exact_decoder import NotExact
    from gleaner.actors.engine.builtin.layer_budget import DoesNotFit
    from gleaner.actors.engine.builtin_server.process import MAX_SLOTS, Settings
    from gleaner.actors.model.qwen3_config import BadCheckpoint
    from gleaner.actors.reward.prompts import BadTokenizer

    if args.slots > MAX_SLOTS:
        raise usage(f"--slots {args.slots}: expected at most {MAX_SLOTS}")
    settings = Settings(
        model=args.model,
        host=host,
        port=port,
        slots=args.slots,
        max_tokens=args.max_tokens,
        threads=args.threads,
        exact=args.exact,
        reserve_mb=args.reserve_mb,
        device=args.device,
        name=args.served_model_name,
        weight_version=args.weight_version,
        seed=secrets.randbits(32) if args.random_seed is None else args.random_seed,
        grace_s=args.grace,
        api_key=key,
    )
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        run_async(_serve(settings, sock))
    except (BadCheckpoint, BadTokenizer) as problem:
        raise usage(str(problem)) from problem
    except DoesNotFit as problem:
        needed_mb = -(-problem.needed_bytes // 2**20)
        raise usage(f"--reserve-mb {args.reserve_mb}: {problem}: it fits with {needed_mb}") from problem
    except NotExact as problem:
        raise failed(str(problem)) from problem
    return OK


def _require_reserve(args: argparse.Namespace) -> None:
    """Raises CommandError."""
    if args.reserve_mb < 0:
        raise usage(f"--reserve-mb {args.reserve_mb}: expected a number from 0")
    if args.device != "cpu" and not args.reserve_mb:
        raise usage(f"--device {args.device} needs --reserve-mb N: the memory of it that may be used")
    if args.reserve_mb and (args.exact or args.threads != 1):
        raise usage("--reserve-mb streams layers to one thread: leave --threads and --exact out")
    if args.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise usage(
                "--device cuda: torch finds no GPU here: leave --device out, or install its CUDA build"
            )


async def _serve(settings: "Settings", sock: socket.socket) -> None:
    from gleaner.actors.engine.builtin_server.process import serve as run

    interrupt, hurry = Interrupt(), asyncio.Event()
    interrupt.listen()
    interrupt.hurried(hurry.set)

    def ready(url: str) -> None:
        sys.stdout.write(f"serving {settings.model} on {url}\n")
        sys.stdout.flush()

    await run(settings, sock, ready, interrupt.wait, hurry.wait)


def _listen(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    host = {"localhost": "127.0.0.1"}.get(host.strip("[]"), host.strip("[]"))
    try:
        ip_address(host)
    except ValueError:
        colon = ""
    if not colon or not port.isdigit() or int(port) > 65535:
        raise usage(f"--listen {text}: expected ADDRESS:PORT such as {DEFAULT_LISTEN}")
    return host, int(port)


def _bound(host: str, port: int) -> socket.socket:
    """A listening socket's address, reserved: connections are refused until the server listens."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
    except OSError as problem:
        sock.close()
        raise failed(f"--listen {host}:{port}: {problem.strerror}: choose another port") from problem
    return sock


def _key(file: Path | None) -> str | None:
    if file is None:
        return None
    try:
        key = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as problem:
        raise usage(f"--api-key-file {file}: {problem}") from problem
    if not key:
        raise usage(f"--api-key-file {file} is empty")
    return key
