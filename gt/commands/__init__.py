"""The commands of `gt`, a module for each group of them; those of operators are in `operator`.

Each imports typer alone until one of its commands runs. A command is a plain function with annotated options; `app.py` has the
list of them. What it prints goes through `typer.echo` or rich, errors that are the user's or the machine's are told in one line
(`shared/error_lines.py`).
"""
