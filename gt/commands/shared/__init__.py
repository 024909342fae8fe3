"""What several commands have in common: their options, and how errors are told. It imports no other command."""
