"""`slotstream serve`: all roles on one machine, until a signal. Knows no files of requests."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Collection, Sequence
from typing import NamedTuple

from api.cli.signals import Interruption
from api.cli.stack import (
    Place,
    Stack,
    check_model,
    check_port_is_free,
    check_slot_folder,
    config_of,
    free_port,
    open_stack,
)
from api.cli.state import state_folder
from api.cli.supervisor import CONFIG_EXIT_CODE, LOAD_EXIT_CODE, ChildRefused
from api.keys import keys_of
from api.port.tls import server_context
from shared.modelfile import LoadFailed
from shared.settings import ConfigError, ServeSettings

PROG = "slotstream serve"


def serve(argv: Sequence[str]) -> int:
    settings = ServeSettings.from_command_line(
        argv, prog=PROG, description="All roles on one machine: API, worker, tasks and an embedded server."
    )
    try:
        return asyncio.run(_serve(settings, config_of(argv)))
    except ConfigError as error:
        print(f"{PROG}: {settings.blame(str(error))}", file=sys.stderr)
        return CONFIG_EXIT_CODE
    except LoadFailed as error:
        print(f"{PROG}: {settings.blame(str(error))}", file=sys.stderr)
        return LOAD_EXIT_CODE
    except ChildRefused as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return error.exit_code


async def _serve(settings: ServeSettings, config: dict[str, str]) -> int:
    if settings.workers and settings.origin is None:
        raise ConfigError("which model? Name a GGUF file with -m FILE, a repository with -hf, or try -m demo")
    if settings.workers and settings.model:
        check_model(settings.model)
    check_slot_folder(settings.slot_save_path)
    place = Place(
        folder=state_folder(settings.state_dir) / "valkey",
        host=settings.host,
        port=settings.port or free_port(settings.host),
        certificate=settings.ssl_cert_file,
        prefix=settings.api_prefix,
    )
    server_context(settings)  # what is wrong with its files is said now, and not lost among what the roles say
    keys = keys_of(settings)
    check_port_is_free(place)
    with Interruption(on_first=_tell_of_stop) as interruption:
        _say(f"starting {settings.workers} worker{'s' * (settings.workers != 1)}, api and tasks ...")
        async with open_stack(settings, place, say=_say, extra=config) as stack:
            interruption.at_once = stack.supervisor.leave
            await stack.become_ready(needs_worker=settings.workers > 0, tell=_say)
            key = keys[0].get_secret_value() if keys else None
            abilities = await stack.supervisor.beside(stack.abilities(key))
            print(welcome(stack, has_key=key is not None, abilities=abilities), flush=True)
            await stack.supervisor.beside(asyncio.Event().wait())
    _say("stopped")
    return 0


def _tell_of_stop(number: signal.Signals) -> None:
    _say(f"{number.name}: finishing what runs, then leaving (again: leave at once)")


def _say(text: str) -> None:
    print(f"{PROG}: {text}", file=sys.stderr, flush=True)


class Example(NamedTuple):
    path: str
    body: str


CHAT = Example(
    "/v1/chat/completions",
    '{"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 32, "stream": true}',
)
EXAMPLES = {
    "completion": CHAT,
    "rerank": Example("/v1/rerank", '{"query": "What is a bee?", "documents": ["An insect.", "A city."]}'),
    "embedding": Example("/v1/embeddings", '{"input": "A bee is an insect."}'),
}
"""What to try first, by what a model can do."""


def welcome(stack: Stack, *, has_key: bool, abilities: Collection[str]) -> str:
    """What is said once requests are answered; without abilities, as if there were text to come."""
    key = " -H 'Authorization: Bearer YOUR_KEY'" if has_key else ""
    example = next((example for ability, example in EXAMPLES.items() if ability in abilities), CHAT)
    return f"""
  slotstream is ready
    API        {stack.place.url}
    queue      {stack.redis}

  Try it:
    curl {stack.place.url}{example.path}{key} -H 'Content-Type: application/json' \\
      -d '{example.body}'
"""
