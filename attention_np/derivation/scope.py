"""What the names of a page stand for at one place of it: a scope for the page, and one for each worked example."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from attention_np.derivation.account import Account
from attention_np.derivation.draws import BOUND_DRAWS, BOUND_TOGETHER, TOGETHER, complete, draw_sizes, draw_tensor
from attention_np.derivation.environment import Definitions, Environment, Tensor
from attention_np.derivation.evaluate import evaluate
from attention_np.derivation.header import Header
from attention_np.derivation.names import Names
from attention_np.derivation.values import Arithmetic


@dataclass
class Scope:
    """The names that are known, what they are defined as, and their values in every draw."""

    names: Names
    definitions: Definitions
    sizes: dict[str, int]  # that a worked example sets, and its free tensors
    values: dict[str, Tensor]
    environments: list[Environment] = field(default_factory=list)
    more: list[Environment] = field(default_factory=list)  # further draws and sizes, for a few equations alone


@dataclass(frozen=True)
class Drawing:
    """How a page is drawn: what it declares, the seed, the number of draws, and the account of what they cost."""

    header: Header
    account: Account
    seed: int
    draws: int

    def scope(self, names: Names, definitions: Definitions, sizes: dict[str, int], values: dict[str, Tensor]) -> Scope:
        """The scope in which these sizes and free tensors are set; all others are drawn."""
        scope = Scope(names, definitions, sizes, values)
        scope.environments += self._environments(scope, range(self.draws), TOGETHER)
        return scope

    def more(self, scope: Scope) -> list[Environment]:
        """Many more draws of a scope, of other magnitudes."""
        if not scope.more:
            further = range(self.draws, self.draws + BOUND_DRAWS)
            scope.more += self._environments(scope, further, BOUND_TOGETHER, magnitudes=True)
        return scope.more

    def _environments(self, scope: Scope, draws: range, together: int, magnitudes: bool = False) -> list[Environment]:
        """An environment for all draws of the same sizes; each ``together`` of them have the same for certain."""
        batches: dict[tuple[tuple[str, int], ...], list[int]] = {}
        for start in range(0, len(draws), together):
            sizes = draw_sizes(self.header, self.seed, draws[start] // TOGETHER) | scope.sizes
            complete(self.header, sizes)
            batches.setdefault(tuple(sizes.items()), []).extend(draws[start : start + together])
        environments = []
        for lengths, batch in batches.items():
            arithmetic = Arithmetic(dict(lengths), bool(scope.values or scope.sizes), self.account)
            draw = partial(draw_tensor, arithmetic=arithmetic, seed=self.seed, draws=batch, magnitudes=magnitudes)
            known = scope.names, scope.definitions, arithmetic, dict(scope.values)
            environments.append(Environment(*known, evaluate, self.header, draw, batch))
        return environments
