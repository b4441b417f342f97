"""Worked examples: the sizes and tensors that a section of a page sets to printed numbers."""

from __future__ import annotations

from attention_np.derivation import limits, nodes
from attention_np.derivation.account import Account
from attention_np.derivation.environment import Definitions, Environment, Tensor
from attention_np.derivation.errors import Fault, Span
from attention_np.derivation.evaluate import evaluate
from attention_np.derivation.header import Header
from attention_np.derivation.names import Names
from attention_np.derivation.statements import Chain, Statement, chains, read_statement
from attention_np.derivation.values import ONE, Arithmetic, top


class Setting:
    """The sizes and the values of tensors that the equations of one example set, by name."""

    def __init__(self, header: Header, names: Names, account: Account) -> None:
        self.header = header
        self.names = names
        self.account = account
        self.sizes: dict[str, int] = {}
        self.values: dict[str, Tensor] = {}

    def read(self, text: str) -> None:
        """Note the sizes and tensors that an equation sets, if any."""
        for chain in chains(text):
            if len(chain.sides) != 2 or chain.relations[0].text != "=" or not _plausible(chain):
                continue
            statement = read_statement(chain, self.names)
            if binds(statement, self.names):
                self._bind(statement)

    def _bind(self, statement: Statement) -> None:
        left, right = statement.sides
        assert left is not None
        assert right is not None
        arithmetic = Arithmetic({}, account=self.account)
        value = evaluate(Environment(self.names, Definitions(), arithmetic, {}, evaluate, self.header), right)
        if isinstance(left, nodes.SizeRef):
            length = float(value.data.real) if not value.shape else 0.0
            if not 1 < length <= limits.SIZE or length != round(length):
                raise Fault("limit", f"a size between 2 and {limits.SIZE} is needed", right.span)
            self._bind_size(left.name, int(length), left.span)
            return
        assert isinstance(left, nodes.Ref)
        symbol = self.names.get(left.name)
        assert symbol is not None
        assert symbol.axes is not None
        shape = value.axes
        if len(shape) != len(symbol.axes) or ONE in shape:
            raise Fault("shape", f"{left.name} has {len(symbol.axes)} axes", right.span)
        for axis, length_name in zip(symbol.axes, shape, strict=True):
            self._bind_size(axis, int(length_name), right.span)
        data = value.data.reshape(tuple(int(length) for length in shape))
        self.values[left.name] = Tensor(data, symbol.axes, top(data))

    def _bind_size(self, name: str, length: int, span: Span) -> None:
        if self.sizes.setdefault(name, length) != length or self.header.fixed.get(name, length) != length:
            raise Fault("shape", f"{name} is {self.sizes[name]} already, here it is {length}", span)


def _plausible(chain: Chain) -> bool:
    """Whether it may be a name beside a literal, in which stands no letter but a transposition's, e and I."""
    left, right = chain.sides
    return len(left) <= 24 and not any(token.type == "LETTER" and token.text not in "TeI" for token in right)


def binds(statement: Statement, names: Names) -> bool:
    """``Q = `` a literal, for a free tensor or a size."""
    if len(statement.sides) != 2 or statement.relations != ("=",) or statement.target is not None:
        return False
    left, right = statement.sides
    if right is None or any(
        isinstance(node, (nodes.Ref, nodes.IndexRef, nodes.SizeRef, nodes.Derivative)) for node in right.walk
    ):
        return False
    if isinstance(left, nodes.SizeRef):
        return True
    if not isinstance(left, nodes.Ref) or left.indices is not None:
        return False
    symbol = names.get(left.name)
    return symbol is not None and symbol.kind == "tensor"
