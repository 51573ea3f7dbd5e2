"""The words of a .proto text, without spaces and comments."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from frazil.errors import InvalidRequest
from frazil.registry import limits
from frazil.registry.kinds import quoted

__all__ = ["END", "Token", "Tokens", "tokenize"]

_TOKEN: Final = re.compile(
    r"""
    (?P<space>   [ \t\r\n\f\v]+ | //[^\n]* | /\*(?:[^*]|\*(?!/))*\*/ )
  | (?P<name>    [A-Za-z_][A-Za-z0-9_]* )
  | (?P<number>  (?:0[xX][0-9A-Fa-f]+ | [0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)? | \.[0-9]+ ) )
  | (?P<text>    "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*' )
  | (?P<sign>    [;{}\[\]()<>=,.:+\-/] )
    """,
    re.VERBOSE,
)
END: Final = "end"
_DIGITS_MAX: Final = 64


class Token(NamedTuple):
    """One word: `kind` is name, number, text, sign or end."""

    kind: str
    text: str
    line: int


def tokenize(text: str) -> list[Token]:
    """Return the words of a text, the last is the end; what is none is an InvalidRequest."""
    found: list[Token] = []
    at, line = 0, 1
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise InvalidRequest(
                f"invalid .proto text at line {line}: '{quoted(text[at : at + 20])}' is no word"
            )
        kind, word, at = match.lastgroup or "", match[0], match.end()
        if kind != "space":
            found.append(Token(kind, word, line))
            if len(found) > limits.PROTOBUF_WORDS_MAX:
                raise InvalidRequest(
                    "the .proto text has too many words and signs",
                    words_max=limits.PROTOBUF_WORDS_MAX,
                )
        if "\n" in word:
            line += word.count("\n")
    found.append(Token(END, "", line))
    return found


class Tokens:
    """The words in their order, with a look at the next one."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0

    @property
    def next(self) -> Token:
        """The next word, not taken."""
        return self._tokens[self._at]

    def refuse(self, text: str) -> InvalidRequest:
        """Return the error for the place of the next word."""
        return InvalidRequest(f"invalid .proto text at line {self.next.line}: {text}")

    def take(self, kind: str, what: str) -> str:
        """Take the next word, which must be of a kind."""
        token = self.next
        if token.kind != kind:
            shown = quoted(token.text) or "the end"
            raise self.refuse(f"{what} expected, found '{shown}'")
        self._at += 1
        return token.text

    def accept(self, text: str) -> bool:
        """Take the next word if it is this one."""
        token = self.next
        if token.text != text or token.kind not in {"name", "sign"}:
            return False
        self._at += 1
        return True

    def skip(self) -> None:
        """Take the next word, whatever it is; the end stays."""
        self._at += self.next.kind != END

    def expect(self, text: str) -> None:
        """Take the next word, which must be this one."""
        if not self.accept(text):
            shown = quoted(self.next.text) or "the end"
            raise self.refuse(f"'{text}' expected, found '{shown}'")

    def integer(self, what: str) -> int:
        """Take a whole number with or without a sign."""
        sign = -1 if self.accept("-") else 1
        text = self.take("number", what)
        if len(text) > _DIGITS_MAX:
            raise self.refuse(f"{what} expected, found '{quoted(text)}'")
        try:
            if text[:2] in {"0x", "0X"}:
                return sign * int(text, 16)
            is_octal = text.startswith("0") and len(text) > 1
            return sign * int(text, 8 if is_octal else 10)
        except ValueError as error:
            raise self.refuse(f"{what} expected, found '{quoted(text)}'") from error

    def full_name(self, what: str) -> str:
        """Take a name with dots, perhaps with one at its start."""
        parts = ["." if self.accept(".") else ""]
        parts.append(self.take("name", what))
        while self.accept("."):
            parts.append("." + self.take("name", what))
        return "".join(parts)

    def string(self, what: str) -> str:
        """Take a text in quotes, without them; escapes stay as they are."""
        return self.take("text", what)[1:-1]

    def skip_block(self) -> None:
        """Skip from an opening brace to the closing one."""
        self.expect("{")
        depth = 1
        while depth:
            token = self.next
            if token.kind == END:
                raise self.refuse("'}' expected, found the end")
            self._at += 1
            if token.kind == "sign":
                depth += (token.text == "{") - (token.text == "}")

    def skip_statement(self) -> None:
        """Skip to the semicolon, over a value in braces too."""
        while not self.accept(";"):
            if self.next.kind == END:
                raise self.refuse("';' expected, found the end")
            if self.next.kind == "sign" and self.next.text == "{":
                self.skip_block()
            else:
                self._at += 1
