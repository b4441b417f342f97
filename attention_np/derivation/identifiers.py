"""Names of a page as names of Python: a hat becomes ``S_hat``, a script ``W_Q``, and each name one of its own."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable

from attention_np.derivation.header import Header
from attention_np.derivation.names import Names, of_tangent
from attention_np.derivation.tokens import ACCENTS, FONTS

_WORD = re.compile(r"\\([A-Za-z]+)|([A-Za-z0-9]+)|('+)|[{}]|.")
_SHORT = {"varepsilon": "epsilon", "vartheta": "theta", "varphi": "phi", "lambda": "lam"}
_OVER = {"widehat": "hat", "widetilde": "tilde"}
_TAKEN = frozenset(["np", *keyword.kwlist])


class Identifiers:
    """One name of Python for each key of a page, in the order in which the keys are given."""

    def __init__(self) -> None:
        self._of: dict[str, str] = {}
        self._taken = set(_TAKEN)

    @classmethod
    def of_page(cls, header: Header, tables: Iterable[Names]) -> Identifiers:
        """Those of all names in these tables; a family beside a tensor of its letter has its index, as ``Q_h``."""
        made = cls()
        for names in tables:
            for symbol in names.of_kind("size", "index", "tensor", "defined"):
                wish = spelled(symbol.key)
                if symbol.key.endswith("()") and symbol.axes and wish in made._taken:
                    wish += "".join(f"_{index}" for index, axis in header.indices.items() if axis == symbol.axes[0])[:2]
                made.of(symbol.key, wish)
        return made

    def of(self, key: str, wish: str = "") -> str:
        """The name for a key."""
        if key not in self._of:
            self._of[key] = self.new(wish or spelled(key))
        return self._of[key]

    def new(self, wish: str) -> str:
        """A name that nothing has yet: the one that is wished for, if nothing has it."""
        name, number = wish, 2
        while name in self._taken:
            name, number = f"{wish}_{number}", number + 1
        self._taken.add(name)
        return name

    def copy(self) -> Identifiers:
        """The same names, to which others can be added."""
        copied = Identifiers()
        copied._of, copied._taken = dict(self._of), set(self._taken)
        return copied


def spelled(key: str) -> str:
    """The letters of a key, those of accents at the end."""
    tangent = of_tangent(key)
    if tangent:
        return f"{spelled(tangent)}_dot"
    words: list[str] = []
    over: list[str] = []
    for match in _WORD.finditer(key):
        command, plain, primes = match.groups()
        if command is not None and "\\" + command in ACCENTS:
            over.append(_OVER.get(command, command))
        elif command is not None and "\\" + command in FONTS:
            words.append("" if command != "mathcal" else "cal_")
        elif command is not None or plain is not None:
            words.append(_SHORT.get(command, command) if command is not None else plain)
        elif primes is not None:
            over += ["prime"] * len(primes)
        elif match[0] in "_^,":
            words.append("_")
    name = re.sub("_+", "_", "_".join(["".join(words), *over])).strip("_")
    return name if name[:1].isalpha() else f"x_{name}"
