"""`gt snapshot`: the snapshots of this user's services as files. It needs no service."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gt.commands.shared.error_lines import errors_as_lines

if TYPE_CHECKING:
    from gt.snapshot_files.snapshot_folder import SnapshotFolder

snapshot = typer.Typer(help="List, export, import and remove the snapshots that services keep.", no_args_is_help=True)

Folder = Annotated[
    Path | None, typer.Option("--snapshots", help="Where the services keep them (GT_SNAPSHOTS).", show_default=False)
]
Whose = Annotated[
    str, typer.Option("--principal", help="Whose they are: 'user UID' or the name of a key; default yours.")
]
Name = Annotated[str, typer.Argument(help="The name of the snapshot.")]


def _folder(root: Path | None, principal: str) -> SnapshotFolder:
    import os

    from gt.snapshot_files.snapshot_folder import SnapshotFolder
    from gt.snapshot_files.snapshot_names import default_folder, principal_folder

    return SnapshotFolder(principal_folder(root or default_folder(), principal or f"user {os.geteuid()}"))


@snapshot.command("list")
def show(snapshots: Folder = None, principal: Whose = "") -> None:
    """List snapshots: name, when it was written, tensors, bytes."""
    with errors_as_lines():
        from datetime import datetime

        listed = _folder(snapshots, principal).list()
        if not listed:
            _tell_of_others(snapshots, principal)
        for each in listed:
            if each.error:
                typer.echo(f"{each.name:30} {each.error}")
            else:
                when = datetime.fromtimestamp(each.time).astimezone().isoformat(" ", "seconds")
                typer.echo(f"{each.name:30} {when} {each.tensors:6} tensors {each.nbytes:15,} bytes")


def _tell_of_others(root: Path | None, principal: str) -> None:
    """Say on stderr whose snapshots there are, where the one who was asked for has none."""
    import os

    from gt.snapshot_files.snapshot_names import default_folder, principals_in

    root, whom = root or default_folder(), principal or f"user {os.geteuid()}"
    others = ", ".join(f"--principal '{each}'" for each in principals_in(root) if each != whom)
    typer.echo(f"{root} has no snapshots of '{whom}'" + (f"; of others: {others}" if others else ""), err=True)


@snapshot.command("export")
def write(
    name: Name,
    file: Annotated[Path, typer.Argument(help="The safetensors file to write.")],
    snapshots: Folder = None,
    principal: Whose = "",
) -> None:
    """Write a snapshot to a safetensors file. Every checksum is checked."""
    with errors_as_lines():
        from gt.snapshot_files.safetensors_files import export_snapshot

        typer.echo(f"{file}: {export_snapshot(_folder(snapshots, principal), name, file):,} bytes")


@snapshot.command("import")
def read(
    file: Annotated[Path, typer.Argument(help="The safetensors file to read.")],
    name: Name,
    snapshots: Folder = None,
    principal: Whose = "",
) -> None:
    """Make a snapshot of a safetensors file; it replaces one of the same name."""
    with errors_as_lines():
        from gt.snapshot_files.safetensors_files import import_snapshot

        typer.echo(f"{name}: {import_snapshot(file, _folder(snapshots, principal), name):,} bytes")


@snapshot.command("rm")
def remove(name: Name, snapshots: Folder = None, principal: Whose = "") -> None:
    """Remove a snapshot, also one that is damaged."""
    with errors_as_lines():
        _folder(snapshots, principal).remove(name)
