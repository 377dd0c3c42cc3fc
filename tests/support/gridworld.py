"""A cat in a grid world: every path, value and gradient is known exactly. Float64 and plain loops; no import from the package.

    start   .      meat        into the meat +100 and into the bathtub -10, and the episode is over;
      .    broom   bathtub     onto the broom -1; anywhere else 0; into a wall: the cat stays (and earns that cell's reward).

Moves are noisy: with probability SLIP the cat moves in one of the three other directions, equally likely. An episode lasts at
most HORIZON moves, so the value of a cell depends on the time too. Six cells, four actions, few thousand paths.
"""

from typing import NamedTuple

import torch
from torch import Tensor

ROWS, COLUMNS, HORIZON, SLIP = 2, 3, 3, 0.3
MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))  # up, right, down, left
CELLS, ACTIONS = ROWS * COLUMNS, len(MOVES)
START, MEAT, BROOM, BATHTUB = 0, 2, 4, 5
REWARDS = {MEAT: 100.0, BROOM: -1.0, BATHTUB: -10.0}
OVER = {MEAT, BATHTUB}


class Paths(NamedTuple):
    """All N paths that can happen, (N, HORIZON) unless said otherwise; 0 where an episode is over."""

    cells: Tensor  # int64, where the cat is
    actions: Tensor  # int64, the chosen moves
    rewards: Tensor  # float64
    mask: Tensor  # bool
    chance: Tensor  # (N,) the probability of the transitions: product of P(next | cell, action)
    ended: Tensor  # (N,) bool, ended in the meat or the bathtub; otherwise at the horizon
    last: Tensor  # (N,) int64, the cell after the last move


def destination(cell: int, move: int) -> int:
    row, column = divmod(cell, COLUMNS)
    row, column = row + MOVES[move][0], column + MOVES[move][1]
    return row * COLUMNS + column if 0 <= row < ROWS and 0 <= column < COLUMNS else cell


def outcomes(cell: int, action: int) -> dict[int, float]:
    """P(next cell | cell, action)."""
    chances: dict[int, float] = {}
    for move in range(ACTIONS):
        next_cell = destination(cell, move)
        chances[next_cell] = chances.get(next_cell, 0.0) + (1 - SLIP if move == action else SLIP / (ACTIONS - 1))
    return chances


def some_policy(seed: int = 0) -> Tensor:
    """(CELLS, ACTIONS) logits."""
    return torch.randn(CELLS, ACTIONS, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def all_paths() -> Paths:
    rows, chances, ended, last = [], [], [], []

    def walk(cell: int, path: list[tuple[int, int, float]], chance: float) -> None:
        if cell in OVER or len(path) == HORIZON:
            rows.append(path)
            chances.append(chance)
            ended.append(cell in OVER)
            last.append(cell)
            return
        for action in range(ACTIONS):
            for where, share in outcomes(cell, action).items():
                walk(where, [*path, (cell, action, REWARDS.get(where, 0.0))], chance * share)

    walk(START, [], 1.0)
    padded = [path + [(0, 0, 0.0)] * (HORIZON - len(path)) for path in rows]
    lengths = torch.tensor([len(path) for path in rows])
    return Paths(
        cells=torch.tensor([[step[0] for step in path] for path in padded]),
        actions=torch.tensor([[step[1] for step in path] for path in padded]),
        rewards=torch.tensor([[step[2] for step in path] for path in padded], dtype=torch.float64),
        mask=torch.arange(HORIZON) < lengths.unsqueeze(1),
        chance=torch.tensor(chances, dtype=torch.float64),
        ended=torch.tensor(ended),
        last=torch.tensor(last),
    )


def values_of(policy: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """(V, Q) by backward induction: V (HORIZON + 1, CELLS), Q (HORIZON, CELLS, ACTIONS); row t: t moves are done."""
    probs = policy.softmax(dim=1)
    v = [torch.zeros(CELLS, dtype=torch.float64)]
    q: list[Tensor] = []
    for _ in range(HORIZON):
        rows = []
        for cell in range(CELLS):
            over = 0.0 if cell in OVER else 1.0
            rows.append(
                torch.stack([
                    over * sum(p * (REWARDS.get(s, 0.0) + gamma * v[0][s]) for s, p in outcomes(cell, action).items())
                    * torch.ones((), dtype=torch.float64)
                    for action in range(ACTIONS)
                ])
            )  # fmt: skip
        q.insert(0, torch.stack(rows))
        v.insert(0, (probs * q[0]).sum(dim=1))
    return torch.stack(v), torch.stack(q)


def exact_gradient(policy: Tensor, gamma: float) -> Tensor:
    """Gradient of V_0(START) by the policy's logits, through the dynamic programme: no sampling, no score function."""
    leaf = policy.clone().requires_grad_()
    values_of(leaf, gamma)[0][0, START].backward()
    assert leaf.grad is not None
    return leaf.grad


def logprobs_of(policy: Tensor, paths: Paths) -> Tensor:
    """(N, HORIZON) log pi(action | cell)."""
    return policy.log_softmax(dim=1)[paths.cells, paths.actions]


def probability(policy: Tensor, paths: Paths) -> Tensor:
    """(N,) of each path."""
    return paths.chance * logprobs_of(policy, paths).masked_fill(~paths.mask, 0.0).sum(dim=1).exp()


def along(table: Tensor, paths: Paths) -> Tensor:
    """(N, HORIZON): table (HORIZON, CELLS), e.g. V without its last row, at the cells of the paths."""
    return table[torch.arange(HORIZON), paths.cells]


def scores_of(policy: Tensor, paths: Paths) -> Tensor:
    """(N, HORIZON, CELLS, ACTIONS): grad log pi = onehot(action) - pi in the row of the cell; by the formula."""
    count = len(paths.cells)
    gradients = torch.zeros(count, HORIZON, CELLS, ACTIONS, dtype=torch.float64)
    row, step = torch.arange(count).unsqueeze(1), torch.arange(HORIZON)
    gradients[row, step, paths.cells] = -policy.softmax(dim=1)[paths.cells]
    gradients[row, step, paths.cells, paths.actions] += 1.0
    return gradients
