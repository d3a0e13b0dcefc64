from __future__ import annotations

import codecs

import pytest

from antwort.tools.builtins.websearch.charsets import codec_of, decode_text

XML = '<?xml version="1.0" encoding="windows-1251"?><p>чай'


@pytest.mark.parametrize(
    "charset, data, text",
    [
        ("utf-8", b"\xff tea", "\ufffd tea"),
        ("iso-8859-1", b"K\xe4se 2 \x80", "Käse 2 €"),
        ("", b"K\xe4se 2 \x80", "Käse 2 €"),
        ("", "茶".encode(), "茶"),
        ("iso-8859-1", codecs.BOM_UTF8 + "茶".encode(), "茶"),
        ("utf-8", codecs.BOM_UTF16_LE + "茶".encode("utf-16-le"), "茶"),
        ("utf-8", codecs.BOM_UTF16_BE + "茶".encode("utf-16-be"), "茶"),
        ("", XML.encode("cp1251"), XML),
        ("utf-8", b'<?xml version="1.0" encoding="utf-16"?>', '<?xml version="1.0" encoding="utf-16"?>'),
        ("x-sjis", "①茶".encode("cp932"), "①茶"),
        ("no-such-charset", "茶".encode(), "茶"),
        ("gb2312", "茶".encode("gbk"), "茶"),
        ("iso-2022-jp", "茶".encode("iso2022_jp"), "茶"),
        ("utf-8", b"", ""),
    ],
)
def test_the_bom_counts_more_than_the_header_and_that_more_than_the_xml_declaration(charset, data, text):
    assert decode_text(data, charset, 100) == text


@pytest.mark.parametrize(
    "name", ["hex", "zlib", "rot13", "idna", "punycode", "unicode_escape", "undefined", "utf-7", "", "\0"]
)
def test_codecs_that_are_no_charsets_of_the_web_are_not_used(name):
    assert codec_of(name) is None
    assert decode_text(b"tea", name, 100) == "tea"


def test_characters_are_whole_across_parts_and_the_text_is_cut():
    assert decode_text(b"x" + "茶".encode() * 50_000, "utf-8", 60_000) == "x" + "茶" * 49_999 + "茶"
    assert decode_text("🍵".encode() * 100_000, "utf-8", 10) == "🍵" * 10
