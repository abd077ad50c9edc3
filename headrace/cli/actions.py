"""How a function becomes a command: its shared options, its examples, the output of its result and of errors.

An action gets the session and its own arguments, and returns an `Outcome`. A refusal becomes one line on standard
error, with a hint where there is one, and an exit code.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import typer
from typer.main import get_command_from_info

from headrace.cli.outcome import ExitCode, Outcome, error_line, exit_code, show
from headrace.cli.parameters import ScopedName, seconds
from headrace.cli.session import RETRY_S_DEFAULT, URL_DEFAULT, URL_VARIABLE, Auth, Session, SharedOptions
from headrace.cli.standard_streams import output_failed
from headrace.model.errors import HeadraceError, InvalidRequestError
from headrace.model.external_access import NetworkName

PANEL = "Shared options, before or after the command"

Url = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help=f"URL of the controller (default: {URL_VARIABLE}, then {URL_DEFAULT})",
        rich_help_panel=PANEL,
    ),
]
AuthOption = Annotated[
    Auth | None, typer.Option(help="sign requests with AWS credentials (default: do not sign)", rich_help_panel=PANEL)
]
Json = Annotated[bool | None, typer.Option("--json", help="print JSON instead of a table", rich_help_panel=PANEL)]
RetryS = Annotated[
    float | None,
    typer.Option(
        parser=seconds,
        metavar="SECONDS",
        help=f"how long to retry a request that may succeed later (default {RETRY_S_DEFAULT:g})",
        rich_help_panel=PANEL,
    ),
]
NetworkOption = Annotated[
    NetworkName | None,
    typer.Option(
        help="external: reach the segment stores through the load balancer outside their network (default: "
        "HEADRACE_NETWORK, then vpc)",
        rich_help_panel=PANEL,
    ),
]

Run = TypeVar("Run", bound=Callable[..., Outcome | None])
"""An action. It returns None if it has printed its output itself."""


def new_app() -> typer.Typer:
    """An application. People see styled help texts, programs plain ones."""
    return typer.Typer(
        no_args_is_help=True,
        rich_markup_mode="rich" if sys.stdout.isatty() else None,
        pretty_exceptions_enable=False,
    )


def only_command(app: typer.Typer) -> Any:
    """The command of an application that has one. It has no options for the completion of a shell."""
    return get_command_from_info(
        app.registered_commands[0],
        pretty_exceptions_short=app.pretty_exceptions_short,
        rich_markup_mode=app.rich_markup_mode,
    )


def take_shared_options(
    context: typer.Context,
    url: Url = None,
    auth: AuthOption = None,
    json: Json = None,
    retry_s: RetryS = None,
    network: NetworkOption = None,
) -> None:
    """The callback of a group: remembers the shared options that stand before the command."""
    given = SharedOptions(url, auth, json, retry_s, network)
    context.obj = given.over(context.obj) if isinstance(context.obj, SharedOptions) else given


def action(app: typer.Typer, name: str, *, examples: Sequence[str], hidden: bool = False) -> Callable[[Run], Run]:
    """Makes the decorated function the command `name` of `app`. Its docstring is the help text."""

    def register(run: Run) -> Run:
        own = list(inspect.signature(run, eval_str=True).parameters.values())[1:]
        shared = list(inspect.signature(take_shared_options, eval_str=True).parameters.values())

        @functools.wraps(run)
        def command(**values: Any) -> None:
            context = values.pop("context")
            options = SharedOptions(*(values.pop(parameter.name) for parameter in shared[1:]))
            if isinstance(context.obj, SharedOptions):
                options = options.over(context.obj)
            code = execute(Session(context.command_path, options), run, values)
            if code is not ExitCode.DONE:
                raise typer.Exit(code)

        keyword = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in (shared[0], *own, *shared[1:])
        ]
        command.__signature__ = inspect.Signature(keyword)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in keyword}
        text = "\n\n".join(" ".join(part.split()) for part in inspect.cleandoc(run.__doc__ or "").split("\n\n"))
        epilog = listed("Examples", examples, rich=app.rich_markup_mode is not None)
        app.command(name, help=text, epilog=epilog, hidden=hidden)(command)
        return run

    return register


def execute(session: Session, run: Callable[..., Outcome | None], values: dict[str, Any]) -> ExitCode:
    """Runs an action; prints its outcome or its error."""
    try:
        with session:
            _check_text(session.shared, values)
            outcome = run(session, **values)
            if outcome is not None:
                show(outcome, as_json=session.json)
            sys.stdout.flush()
            return ExitCode.DONE if outcome is None else outcome.code
    except HeadraceError as error:
        session.complain(error_line(error, _given_names(values)))
        return exit_code(error)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except OSError as error:
        return output_failed(error, session.complain)


def _given_names(values: Mapping[str, Any]) -> dict[str, str]:
    """The names on the command line by their placeholders in hints."""
    names = {"SCOPE": values["scope"]} if isinstance(values.get("scope"), str) else {}
    for kind in ("stream", "group", "table"):
        name = values.get(kind)
        if isinstance(name, ScopedName):
            names |= {f"SCOPE/{kind.upper()}": str(name), "SCOPE": name.scope}
    return names


def _check_text(shared: SharedOptions, values: Mapping[str, Any]) -> None:
    """Python keeps bytes of an argument that are no text in its encoding, but no request can carry them.

    Names of files may have them.
    """
    left: list[Any] = [shared.url, *values.values()]
    while left:
        value = left.pop()
        if isinstance(value, list | tuple):
            left += value
        elif isinstance(value, str) and not _is_unicode(value):
            raise InvalidRequestError(f"the argument {value!a} is not text in UTF-8")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def listed(title: str, lines: Sequence[str], *, rich: bool) -> str:
    """A list for the end of a help text. Without styles, "\\b" keeps the lines as they are."""
    if rich:
        return "\n\n".join([f"[bold]{title}[/bold]", *(line.replace("[", r"\[") for line in lines)])
    return f"\b\n{title}:\n" + "\n".join(f"  {line}" for line in lines)
