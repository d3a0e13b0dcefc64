from __future__ import annotations

import pytest
from msgspec import Struct

from antwort.tools.client_run.arguments import InvalidArguments, convert, read_object, without_nulls


class Sample(Struct):
    count: int | None = None
    name: str = ""


def test_an_object_is_read_also_with_line_breaks_in_strings():
    assert read_object("") == {}
    assert read_object('{"a": "b\nc"}') == {"a": "b\nc"}


def test_unpaired_surrogates_are_replaced_everywhere():
    read = read_object('{"a\\ud800": ["\\udc00b", {"c": "\\ud83c\\udf75"}]}')

    assert read == {"a\ufffd": ["\ufffdb", {"c": "🍵"}]}


@pytest.mark.parametrize("written", ["nope", "[1]", '"text"', "null", '{"a": ', "[" * 100_000, '{"a":' * 100_000])
def test_what_is_no_object_is_invalid(written):
    with pytest.raises(InvalidArguments, match="the arguments"):
        read_object(written)


def test_values_are_converted_and_errors_name_the_field():
    assert convert({"count": "3", "name": "a", "other": 1}, Sample) == Sample(3, "a")
    assert without_nulls(Sample(name="a")) == {"name": "a"}
    with pytest.raises(InvalidArguments, match=r"`\$.count`"):
        convert({"count": "many"}, Sample)
