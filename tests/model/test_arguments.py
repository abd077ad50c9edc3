"""What a refused argument is told to be."""

from __future__ import annotations

import pytest

from headrace.model.arguments import check_argument
from headrace.model.errors import InvalidRequestError


@pytest.mark.parametrize(("characters", "shown"), [(198, 200), (199, 203), (1_000_000, 203)])
def test_a_long_value_is_shown_in_part(characters: int, shown: int) -> None:
    """`repr` adds two quotation marks."""
    with pytest.raises(InvalidRequestError) as refused:
        check_argument("count", "x" * characters, int)
    message = refused.value.message
    assert len(message) == len("count is  (str), but must be int") + shown, message
    assert refused.value.specific_code == "invalid_argument"


@pytest.mark.parametrize(
    ("hint", "accepted", "refused"),
    [
        (bool, True, 1),
        (int | None, None, "1"),
        (tuple[int, str], (1, "a"), (1,)),
        (tuple[int, str], (1, "a"), (1, 2)),
        (tuple[int, str], (1, "a"), ("1", "a")),
        (dict[str, int], {"a": 1}, {"a": 1, "b": "2"}),
        (list[int], [1, 2], [1, "2"]),
    ],
)
def test_each_part_of_a_value_is_looked_at(hint: object, accepted: object, refused: object) -> None:
    check_argument("value", accepted, hint)
    with pytest.raises(InvalidRequestError, match="value is"):
        check_argument("value", refused, hint)
