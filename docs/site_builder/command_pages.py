"""Makes the page of `gt`'s commands from the command line itself: every command with its arguments and options."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import typer

from gt.commands.app import app

ABOUT = """# Commands

`gt COMMAND --help` prints the same. An error is a line and status 1; how to call a command wrongly is status 2.
Sizes are numbers with a unit, as in `8GB`; addresses are `tcp://HOST:PORT` or `ipc:///PATH`.
"""


@cache
def command_line() -> Any:
    """The command `gt`, as typer builds it."""
    return typer.main.get_command(app)


def commands() -> Iterator[tuple[str, Any]]:
    """Every command that does something, as 'gt keys new' with what typer knows of it."""

    def below(name: str, command: Any) -> Iterator[tuple[str, Any]]:
        children = getattr(command, "commands", {})
        for inner, child in children.items():
            yield from below(f"{name} {inner}", child)
        if not children or (getattr(command, "invoke_without_command", False) and name != "gt"):
            yield name, command

    yield from below("gt", command_line())


def command_page() -> str:
    """The page that lists every command."""
    found = list(commands())
    parts = [ABOUT]
    parts.append(
        "| command | what it does |\n| --- | --- |\n"
        + "".join(
            f"| [`{name}`](#{name.replace(' ', '-')}) | {_cell((each.help or '').split('. ')[0])} |\n"
            for name, each in found
        )
    )
    parts += [_entry(name, command) for name, command in found]
    return "\n".join(parts)


def _entry(name: str, command: Any) -> str:
    arguments = [each for each in command.params if not each.opts[0].startswith("-")]
    options = [
        each for each in command.params if each.opts[0].startswith("-") and each.name != "help" and not each.hidden
    ]
    usage = " ".join([name, *(["[OPTIONS]"] if options else []), *(_argument(each) for each in arguments)])
    text = f"## {name} {{#{name.replace(' ', '-')}}}\n\n```bash\n{usage}\n```\n\n{_prose(command.help or '')}\n"
    rows = [(f"`{_argument(each)}`", each.help or "") for each in arguments]
    rows += [(_option(each), _help(each)) for each in options]
    if rows:
        text += "\n| | |\n| --- | --- |\n" + "".join(f"| {what} | {_cell(about)} |\n" for what, about in rows)
    return text


def _argument(parameter: Any) -> str:
    shown = (parameter.metavar or parameter.name.upper()) + ("…" if parameter.nargs == -1 else "")
    return shown if parameter.required or shown.startswith("[") else f"[{shown}]"


def _option(parameter: Any) -> str:
    """An option's names, and what it takes."""
    names = ", ".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])
    return names if parameter.is_flag else f"{names} {_cell(f'`{parameter.metavar or _kind(parameter)}`')}"


def _kind(parameter: Any) -> str:
    """What an option takes, by the type that its function declares."""
    annotation = parameter.type_descriptor.annotation
    names = {"int": "NUMBER", "float": "NUMBER", "Path": "PATH", "str": "TEXT"}
    name = getattr(annotation, "__name__", "TEXT")
    choices = [str(each.value) for each in annotation] if hasattr(annotation, "__members__") else []
    return "|".join(choices) or names.get(name, "TEXT")


def _help(parameter: Any) -> str:
    """What an option does, with its variable and its default."""
    more = []
    if parameter.envvar:
        more.append(f"variable `{parameter.envvar}`")
    held = parameter.default
    if held not in (None, "", False, ()) and not callable(held) and "efault" not in (parameter.help or ""):
        more.append(f"default {getattr(held, 'value', held)}")
    return (parameter.help or "") + (f" ({', '.join(more)})" if more else "")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def _prose(text: str) -> str:
    text = re.sub(r"\n(?!\n)\s*(?=\S)", "\n", text.strip()).replace("<", "&lt;").replace("*", "\\*")
    return re.sub(r"\bdocs/([\w/-]+)\.md\b", r"[\1](\1.md)", text)
