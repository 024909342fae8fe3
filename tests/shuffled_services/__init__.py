"""Whole services in one process under a seeded scheduler: messages between different peers overtake each other at will."""
