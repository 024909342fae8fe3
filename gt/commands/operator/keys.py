"""`gt keys`: who may connect to this user's services at TCP addresses."""

from __future__ import annotations

from typing import Annotated

import typer

from gt.commands.shared.error_lines import errors_as_lines
from gt.wire.principals import PrincipalRole

keys = typer.Typer(help="Make and list the keys that this user's services on TCP accept.", no_args_is_help=True)


@keys.command()
def new(
    name: Annotated[str, typer.Argument(help="Whose key it is: a person, program or machine.")],
    role: Annotated[
        PrincipalRole,
        typer.Option(help="What it may do: run programs, join as a worker, watch and cancel work, or only watch."),
    ] = PrincipalRole.USER,
) -> None:
    """Make a key and authorise it; services that run notice it. Whoever uses it is given the file that is named."""
    with errors_as_lines():
        from gt.wire.keys import key_folder, new_key

        path = new_key(name, role)
        typer.echo(f"{path} is the secret key: copy it to where it is used, and set GT_KEY to its path there")
        typer.echo(
            f"{key_folder() / 'authorized' / f'{name}.pub'} authorises it as {role.value}: remove it to withdraw the key"
        )


@keys.command("list")
def show() -> None:
    """List the keys that are authorised, with their roles."""
    with errors_as_lines():
        from gt.wire.keys import AuthorizedKeys

        for public, principal in AuthorizedKeys().known.items():
            typer.echo(f"{principal.name:30} {' '.join(sorted(principal.roles)):30} {public}")
