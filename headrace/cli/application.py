"""The whole command line: it names the commands, and imports the module of the one that is used."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group

from headrace import __version__
from headrace.cli.actions import (
    AuthOption,
    Json,
    NetworkOption,
    RetryS,
    Url,
    new_app,
    only_command,
    take_shared_options,
)
from headrace.cli.old_names import with_current_names
from headrace.cli.outcome import ExitCode
from headrace.cli.session import SharedOptions
from headrace.cli.standard_streams import end_output, output_failed, print_message
from headrace.compiled import code_kind
from headrace.model.errors import HeadraceError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "headrace.commands"

SUMMARIES: Mapping[str, str] = {
    "console": "Serve the web console on loopback, for a browser.",
    "up": "Start the local stack.",
}
"""The help texts of added commands that are part of Headrace."""

TAKE_SHARED_OPTIONS = frozenset({"console"})
"""Added commands that get the URL and the way to sign requests also if these stand before the command."""

EVERYDAY, OPERATE, SECURITY = "Everyday", "Operate", "Security"
PANELS: Mapping[str, str] = {
    **dict.fromkeys(("segment", "subscriber", "retention", "transaction", "watermark"), OPERATE),
    **dict.fromkeys(("cluster", "dead-letter", "doctor", "restore", "upgrade", "cost", "bench", "console"), OPERATE),
    **dict.fromkeys(("access", "grpc-user", "token-key", "trust"), SECURITY),
}
"""The part of the help text in which a command is, if not in the everyday ones."""

SINGLE_COMMANDS = ("top", "trust", "quickstart", "cost", "bench", "doctor")
"""Commands without actions. Each has a module of its name in this folder, with a function `add_to`."""

RESOURCES: Mapping[str, tuple[str, str]] = {
    "scope": ("scope", "Scopes: namespaces of streams, reader groups and tables."),
    "stream": ("stream", "Streams: unbounded, durable sequences of events."),
    "event": ("event", "Events of a stream. Connects to the segment stores directly."),
    "segment": ("segment", "Segments: the parallel parts of a stream."),
    "group": ("group", "Reader groups: readers that share the segments of streams."),
    "subscriber": ("subscriber", "Subscribers: reader groups that the retention of a stream waits for."),
    "retention": ("retention", "Retention: which data of a stream is kept."),
    "transaction": ("transaction", "Transactions of a stream."),
    "watermark": ("watermark", "Watermarks: the progress of a stream in the time of its events."),
    "table": ("table", "Key-value tables."),
    "cluster": ("cluster", "Segment stores, containers and their logs."),
    "upgrade": ("upgrade", "Upgrades: which releases run, and the end of the time for a rollback."),
    "restore": ("restore", "Restore the deployment to an earlier time, from a copy of its table."),
    "access": ("access", "Access: policies of IAM for callers of the controller."),
    "grpc-user": ("grpc_user", "Users of the gRPC bridge for Pravega's own clients, in a file or a secret."),
    "dead-letter": ("dead_letter", "Dead letters: requests whose last attempt failed, with the error of that attempt."),
    "token-key": ("token_key", "Keys that sign delegation tokens. Change them where they are stored."),
}
"""For each resource its module in this folder, and its help text. Only the modules that a command line names are
imported, which saves start-up time."""

Command = Callable[[Sequence[str]], int]


def run(arguments: Sequence[str]) -> int:
    """Runs one command; returns the exit code."""
    current, notices = with_current_names(list(arguments))
    for notice in notices:
        print_message(f"headrace: {notice}")
    return end_output(_run_command(current), _complain)


def _run_command(arguments: list[str]) -> int:
    try:
        command_line()(args=arguments, prog_name="headrace")
    except SystemExit as stopped:
        if isinstance(stopped.__context__, BrokenPipeError):  # Typer ends with 1 then
            return _help_failed(stopped.__context__)
        return stopped.code if isinstance(stopped.code, int) else ExitCode.DONE
    except OSError as error:
        return _help_failed(error)
    return ExitCode.DONE


def _help_failed(error: OSError) -> int:
    """The exit code if a help text could not be printed, or the message about an invalid command line."""
    usage_code = getattr(error.__context__, "exit_code", None)
    return usage_code if isinstance(usage_code, int) else output_failed(error, _complain)


def _complain(message: str) -> None:
    print_message(f"headrace: {message}")


@functools.cache
def command_line() -> Callable[..., object]:
    """The command line of this process; installed packages may have added commands."""
    app = new_app()
    app.callback(
        cls=_Commands,
        epilog="`headrace COMMAND --help` describes a command. `headrace quickstart` prints the first ones to try.",
    )(_root)
    return get_command(app)


class _Commands(TyperGroup):
    """All commands. Each is made when it is looked up, so that a run of one does not pay for the others.

    The help text has them in groups.
    """

    _is_complete = False

    def list_commands(self, ctx: Any) -> list[str]:
        if not self._is_complete:
            added = added_commands()
            names = [*SINGLE_COMMANDS, *sorted(added), *RESOURCES]
            self.commands = {name: self.commands.get(name) or _make(name, added.get(name)) for name in names}
            self._is_complete = True
        return list(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in RESOURCES or cmd_name in SINGLE_COMMANDS:
            self.commands[cmd_name] = self.commands.get(cmd_name) or _make(cmd_name)
        else:
            self.list_commands(ctx)  # an added command, or suggestions of similar names
        return self.commands.get(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for panel in (EVERYDAY, OPERATE, SECURITY):
            names = [name for name in self.list_commands(ctx) if PANELS.get(name, EVERYDAY) == panel]
            _write_commands(formatter, panel, [(name, self.get_command(ctx, name)) for name in names])


def _make(name: str, added: EntryPoint | None = None) -> Any:
    """The command with that name, which an installed package may have added."""
    app = new_app()
    if name in RESOURCES:
        module, summary = RESOURCES[name]
        app.callback(cls=_lazy_group(f"headrace.cli.{module}"), help=summary)(take_shared_options)
        made: Any = get_group(app)
        made.name = name
    else:
        if added is not None:
            _add_command(app, name, added)
        else:
            importlib.import_module(f"headrace.cli.{name}").add_to(app)
        made = only_command(app)
    made.rich_help_panel = PANELS.get(name, EVERYDAY)
    return made


def _write_commands(formatter: Any, title: str, commands: Sequence[tuple[str, Any]]) -> None:
    """Writes a section of a help text. A summary is wrapped by words, not cut off."""
    shown = [(name, _summary(command.help)) for name, command in commands if command and not command.hidden]
    if shown:
        with formatter.section(title):
            formatter.write_dl(shown)


def _summary(help_text: str | None) -> str:
    return " ".join((help_text or "").split("\n\n")[0].split())


def added_commands() -> dict[str, EntryPoint]:
    """The commands of installed packages by name.

    If two packages use one name, the command whose target sorts first is taken, so that the choice is stable.
    """
    from importlib.metadata import entry_points

    by_name: dict[str, EntryPoint] = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.value):
        by_name.setdefault(entry.name, entry)
    return by_name


def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="show the version", is_eager=True, callback=lambda value: _version(value))
    ] = False,
    url: Url = None,
    auth: AuthOption = None,
    json: Json = None,
    retry_s: RetryS = None,
    network: NetworkOption = None,
) -> None:
    """Stream storage with Pravega's semantics in your own AWS account."""
    take_shared_options(context, url, auth, json, retry_s, network)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headrace {__version__} ({code_kind()})")
        raise typer.Exit


def _lazy_group(module: str) -> type[TyperGroup]:
    """A group whose actions are those of the application `module.app`, which is imported when one is looked up."""

    class LazyGroup(TyperGroup):
        @functools.cached_property
        def _actions(self) -> Mapping[str, Any]:
            actions: Mapping[str, Any] = get_group(importlib.import_module(module).app).commands
            self.commands.update(actions)
            return actions

        def list_commands(self, ctx: Any) -> list[str]:
            return list(self._actions)

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            return self._actions.get(cmd_name)

        def format_commands(self, ctx: Any, formatter: Any) -> None:
            _write_commands(formatter, "Commands", list(self._actions.items()))

    return LazyGroup


def _add_command(app: typer.Typer, name: str, entry: EntryPoint) -> None:
    """Adds a command that parses its arguments itself."""

    def command(context: typer.Context) -> None:
        shared = _shared_arguments(context.obj) if name in TAKE_SHARED_OPTIONS else []
        raise typer.Exit(_call(entry, [*shared, *context.args]))

    app.command(
        name,
        help=SUMMARIES.get(name, f"The command of {entry.value.partition('.')[0]}."),
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "allow_interspersed_args": False},
    )(command)


def _shared_arguments(shared: object) -> list[str]:
    if not isinstance(shared, SharedOptions):
        return []
    given = (("--url", shared.url), ("--auth", shared.auth), ("--network", shared.network))
    return [text for option, value in given if value is not None for text in (option, value)]


def _call(entry: EntryPoint, arguments: Sequence[str]) -> int:
    try:
        command: Command = entry.load()
    except ImportError as error:
        print_message(f"headrace {entry.name}: {error}. To install it: pip install 'headrace[local]'")
        return ExitCode.USAGE
    try:
        return command(arguments)
    except HeadraceError as error:
        print_message(f"headrace {entry.name}: {error.message}")
        return ExitCode.REFUSED
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
