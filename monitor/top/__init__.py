"""`gt top`: a service at work, as a terminal shows it.

`table.py`, `figures.py`, `ink.py` and `words.py` are how things are written; `tables.py`, `header.py` and the drawings say
what is shown of a snapshot, each a pure function of it. `frame.py` makes one frame of them as text, and
`monitor/snapshot_document.py` as JSON; `app.py` and its widgets are all that knows Textual. Nothing here asks a service
anything: a source hands over snapshots (`source.py`), and does what the user confirmed.
"""
