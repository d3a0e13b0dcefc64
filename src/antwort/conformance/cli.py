"""CLI command `antwort conformance`."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

if TYPE_CHECKING:
    from antwort.conformance.checks import Outcome
    from antwort.conformance.client import ApiClient

# The modules of the extra `server` are imported by the functions that need them, so that `--help` works without it.

_OPENAI_HOST = "api.openai.com"
_MAX_LISTED = 10
_MAX_NAME = 100


class _CannotRun(click.ClickException):
    """The suite cannot start."""

    exit_code = 2


def _list_checks(context: click.Context, option: click.Parameter, is_set: bool) -> None:  # noqa: FBT001 - as click calls it
    """Print all checks, and exit."""
    del option
    if is_set and not context.resilient_parsing:
        from antwort.conformance.suite import ALL_CHECKS  # noqa: PLC0415 - needs an optional extra

        for area, behaviours in ALL_CHECKS.items():
            click.echo(f"{area}: {', '.join(behaviours)}")
        context.exit()


@click.command()
@click.argument("url")
@click.option("--key-env", metavar="NAME", help="Environment variable of the API key.  [default: ANTWORT_API_KEY]")
@click.option("--key", help="The API key itself. Other users of this machine can see it: prefer --key-env.")
@click.option("--other-key-env", metavar="NAME", help="Environment variable of another tenant's key.")
@click.option("--model", help="Model of all requests.  [default: the only one that the server lists]")
@click.option("--only", multiple=True, metavar="AREA[:BEHAVIOUR]", help="Run these checks only; several are possible.")
@click.option(
    "--require", multiple=True, metavar="AREA[:BEHAVIOUR]", help="These checks must pass: 1 if one is not supported."
)
@click.option("--mcp-url", metavar="URL", help="An MCP server that the server under test can reach.")
@click.option("--timeout", type=click.FloatRange(min=1), default=300, show_default=True, help="Seconds of one answer.")
@click.option("--slow", is_flag=True, help="Also run the checks that wait for the expiry of a container, a minute.")
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Also write the outcomes to this file."
)
@click.option(
    "--list",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list_checks,
    help="Print all checks, and run none.",
)
def conformance(  # noqa: PLR0913 - click passes each option
    url: str,
    key_env: str | None,
    key: str | None,
    other_key_env: str | None,
    model: str | None,
    only: tuple[str, ...],
    require: tuple[str, ...],
    mcp_url: str | None,
    timeout: float,
    *,
    slow: bool,
    json_file: Path | None,
) -> None:
    """Check that the server at URL speaks OpenAI's Responses API with its hosted tools, containers and files.

    The suite is a black box: it sends requests to any server, OpenAI's included, and prints a table of tools and
    behaviours, then each failure with the request to repeat it. Each tool costs about ten requests to the model.
    The key of api.openai.com is in OPENAI_API_KEY, that of other servers in ANTWORT_API_KEY, if they need one.

    Exit codes: 0 if nothing failed, 1 after a failure, 2 if the suite could not run.
    """
    from antwort.conformance.checks import without_keys  # noqa: PLC0415 - needs an optional extra
    from antwort.conformance.report import print_report, write_json  # noqa: PLC0415 - needs an optional extra
    from antwort.conformance.suite import Selection, UnknownCheck, has_failed, run_suite  # noqa: PLC0415 - so does this
    from antwort.conformance.target import Target  # noqa: PLC0415 - so does this

    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise click.UsageError(f"The directory of {json_file} does not exist.")
    selection, required = Selection(only), Selection(require)
    try:
        selection.require_known()
        required.require_known()
    except UnknownCheck as error:
        raise click.UsageError(str(error)) from error
    with ExitStack() as stack:
        client = _client(url, _valid(key or _key_of(key_env, url)), timeout)
        stack.callback(client.close)
        other = client.with_key(_valid(_key_of(other_key_env, url))) if other_key_env else None
        if other is not None:
            stack.callback(other.close)
        target = Target(client, model or _only_model(client), other, mcp_url, slow)
        began = time.monotonic()
        keys = (client.key, other.key if other is not None else None)
        outcomes = [without_keys(one, keys) for one in run_suite(target, selection, _print_progress)]
        requests = client.requests + (other.requests if other is not None else 0)
    print_report(_console(), outcomes, requests, time.monotonic() - began)
    if json_file is not None:
        write_json(json_file, client.url, target.model, outcomes, requests)
    if has_failed(outcomes, required):
        raise click.exceptions.Exit(1)


def _key_of(name: str | None, url: str) -> str | None:
    """The key of an environment variable. The default one depends on the server, so that no other gets OpenAI's key."""
    if name is None:
        default = "OPENAI_API_KEY" if urlsplit(url).hostname == _OPENAI_HOST else "ANTWORT_API_KEY"
        return os.environ.get(default)
    if not (key := os.environ.get(name)):
        raise _CannotRun(f"The environment variable {name} is not set.")
    return key


def _valid(key: str | None) -> str | None:
    """A key that can be sent in a header. The error of the HTTP client would show it."""
    if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
        raise _CannotRun("The API key contains spaces, line breaks or characters that are not ASCII.")
    return key


def _client(url: str, key: str | None, timeout: float) -> ApiClient:
    from antwort.conformance.client import ApiClient, InvalidUrl  # noqa: PLC0415 - needs an optional extra

    try:
        return ApiClient(url, key, timeout)
    except InvalidUrl as error:
        raise click.UsageError(str(error)) from error


def _only_model(client: ApiClient) -> str:
    """The model that the server lists, if there is one only."""
    from antwort.conformance.checks import MALFORMED, Outcome, Verdict, without_keys  # noqa: PLC0415 - so does this
    from antwort.conformance.client import Unreachable  # noqa: PLC0415 - needs an optional extra
    from antwort.conformance.grammar import Violation  # noqa: PLC0415 - so does this
    from antwort.conformance.report import printable  # noqa: PLC0415 - so does this

    try:
        reply = client.get("/models")
        if reply.status == 401:
            raise _CannotRun("The server demands an API key: set ANTWORT_API_KEY, or name a variable with --key-env.")
        names = [str(one["id"]) for one in reply.ok()["data"]]
    except (Unreachable, Violation, *MALFORMED) as error:
        reason = without_keys(Outcome("", "", Verdict.FAILED, str(error)), [client.key]).reason
        raise _CannotRun(f"{client.url}/models cannot be read: {printable(reason)}") from error
    if len(names) != 1:
        names = [printable(name[:_MAX_NAME]) for name in names]
        listed = ", ".join(names[:_MAX_LISTED]) + (", …" if len(names) > _MAX_LISTED else "")
        raise _CannotRun(f"The server lists {len(names)} models: name one with --model ({listed}).")
    return names[0]


def _print_progress(area: str, outcomes: Sequence[Outcome]) -> None:
    from antwort.conformance.checks import Verdict  # noqa: PLC0415 - needs an optional extra

    counts = {verdict: sum(outcome.verdict is verdict for outcome in outcomes) for verdict in Verdict}
    click.echo(f"{area}: {', '.join(f'{count} {verdict}' for verdict, count in counts.items() if count)}", err=True)


def _console():  # noqa: ANN202 - the type needs an optional extra
    """The terminal; without one, as wide as the table."""
    from rich.console import Console  # noqa: PLC0415 - needs an optional extra

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=140)
