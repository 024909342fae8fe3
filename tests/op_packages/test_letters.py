"""Sharding letters of ops that packages bring: what they say, and what they refuse."""

import pytest

from gt.errors import ShapeError
from gt.op_packages.letters import cuts_of, fit_letters, parse_letters, result_shape


def fitted(text, *shapes):
    letters = parse_letters(text, len(shapes))
    fit = fit_letters("p::f@1", letters, "xyz"[: len(shapes)], shapes)
    return result_shape(letters, fit), *cuts_of(letters, fit, shapes)


def test_letters_say_shapes_and_where_tensors_may_be_cut():
    assert fitted("bk, kn -> bn", (5, 4), (4, 3)) == ((5, 3), (0, 2), ((0, 1), (1, 2)))
    assert fitted("... -> ...", (5, 4)) == ((5, 4), (0, 1), ((0, 1),))
    assert fitted("..., ... -> ...", (5, 4), (1,)) == ((5, 4), (0, 1), ((0, 1), (None,)))
    assert fitted("..._ -> ..._", (5, 4)) == (None, (0, None), ((0, None),))
    assert fitted("...n -> ...", (2, 3, 4)) == ((2, 3), (0, 1), ((0, 1, 2),))
    assert fitted("... -> ...", ()) == ((), (), ((),))
    assert parse_letters("bn, n -> b", 2).lost == "n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("bk -> b", "a term for each of 2 operands"),
        ("bk, kn", "then ->"),
        ("bb, n -> b", "a letter twice"),
        ("b, n -> bm", "no operand has m"),
        ("B, n -> n", "small letters"),
        ("...b, n -> b", "in the result and in some operand"),
        ("b, n -> ...b", "in the result and in some operand"),
    ],
)
def test_letters_that_say_nothing_are_refused(text, said):
    with pytest.raises(ValueError, match=said):
        parse_letters(text, 2)


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        (((5, 4), (3, 3)), "y has size 3 along k, and x has 4"),
        (((5,), (4, 3)), "x has 2 dimensions"),
        (((5, 4, 1), (4, 3)), "x has 2 dimensions"),
    ],
)
def test_operands_that_do_not_fit_their_letters_are_refused(shapes, said):
    with pytest.raises(ShapeError, match=said):
        fitted("bk, kn -> bn", *shapes)
