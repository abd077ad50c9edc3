"""Kinds of requests and their nouns."""

from __future__ import annotations

import pytest

from headrace.model.requests import Noun, RequestKind


@pytest.mark.parametrize("noun", [noun for noun in Noun if noun is not Noun.STREAM])
def test_a_kind_that_is_named_after_a_noun_works_on_it(noun: Noun):
    """Nobody can add `move_reader_group` and forget to say that it works on reader groups."""
    ending = str(noun).replace("-", "_")
    for kind in RequestKind:
        assert (kind.noun is noun) == kind.endswith(ending), kind
