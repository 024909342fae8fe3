"""How clients and workers find the dispatcher that has taken the place of theirs."""
