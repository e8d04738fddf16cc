"""Reinforcement learning with memory: episodes that end, and begin, inside of a rollout.

    python -m experiments.examples.reinforcement       # 1 min

A sign is shown once, and each step at which the agent names it is rewarded. So it must remember,
until another episode begins, at another time in each game. Many programs learn by a loop: a mask
that sets states to zero, one step of the GRU, the next mask. That is as slow as it looks. But what
lies between two resets is a sequence of its own: a rollout is one PackedSequence of such segments,
one call of nn.GRU (`segments` below is all that it takes), and `bl.attach` makes that call fast.

Advantage actor-critic, trained three times in turns, rollout by rollout: by the loop, by segments
with PyTorch's own GRU, and by segments after `bl.attach`. Before, their gradients are compared.
The picture: what each has learned after how long, and what an update takes.
"""

import argparse
import time
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn.functional import one_hot
from torch.nn.utils.rnn import pack_sequence, unpack_sequence

import bppsa_lightning as bl
from experiments import style
from experiments.examples import side_by_side

SIGNS, GAMES, STEPS, HIDDEN, DISCOUNT = 4, 16, 256, 32, 0.5  # B games of T steps a rollout
WAYS = {"loop": "loop with masks", "stock": "segments, PyTorch", "bppsa": "segments, bppsa"}
COLOURS = {"loop": style.GREY, **side_by_side.COLOURS}


class Game:
    """GAMES games at once. An episode has 20 to 100 steps, and shows its sign at the first."""

    def __init__(self, generator: torch.Generator) -> None:
        self.drawn = {"size": (GAMES,), "generator": generator}
        self.sign, self.left = torch.zeros(2, GAMES, dtype=torch.int64)

    def look(self) -> tuple[Tensor, Tensor]:
        """What is seen (B, SIGNS), and in which games an episode begins (B,)."""
        first = self.left == 0
        self.sign = torch.where(first, torch.randint(SIGNS, **self.drawn), self.sign)
        self.left = torch.where(first, torch.randint(20, 101, **self.drawn), self.left)
        return one_hot(self.sign, SIGNS) * first[:, None].float(), first

    def act(self, action: Tensor) -> tuple[Tensor, Tensor]:
        """Rewards (B,), and in which games the episode is over (B,)."""
        self.left -= 1
        return (action == self.sign).float(), self.left == 0


def masked_loop(gru: nn.GRU, x: Tensor, first: Tensor, h: Tensor) -> Tensor:
    """States (T, B, H) for x (T, B, I), step by step; where `first` (T, B), forgetting before."""
    states = []
    for seen, begins in zip(x, first, strict=True):
        state, h = gru(seen[None], h * ~begins[:, None])
        states.append(state)
    return torch.cat(states)


def segments(gru: nn.GRU, x: Tensor, first: Tensor, h: Tensor) -> Tensor:
    """The same by one call: each sequence between two resets is a sample of its own."""
    T, B, _ = x.shape
    begins = first.clone()
    begins[0] = True  # with each rollout, too
    starts = begins.T.flatten().nonzero().squeeze(1)  # one game after the other
    lengths = starts.diff(append=starts.new_tensor([T * B])).tolist()
    carried = h.new_zeros(1, len(starts), h.shape[-1])
    carried[:, starts % T == 0] = h * ~first[0, :, None]  # what goes on from the last rollout
    packed = pack_sequence(x.transpose(0, 1).flatten(0, 1).split(lengths), enforce_sorted=False)
    states = unpack_sequence(gru(packed, carried)[0])
    return torch.cat(states).unflatten(0, (B, T)).transpose(0, 1)


class Learner:
    """An agent, its games, and what it has learned; `way` is one of WAYS."""

    def __init__(self, way: str) -> None:
        torch.manual_seed(0)
        self.gru, self.heads = nn.GRU(SIGNS, HIDDEN), nn.Linear(HIDDEN, SIGNS + 1)
        self.agent = nn.ModuleList([self.gru, self.heads])
        if way == "bppsa":
            bl.attach(self.agent)  # this is what one copies, and `segments`
        self.states = masked_loop if way == "loop" else segments
        self.optimizer = torch.optim.Adam(self.agent.parameters(), lr=1e-2)
        self.generator = torch.Generator().manual_seed(1)
        self.game, self.h = Game(self.generator), torch.zeros(1, GAMES, HIDDEN)
        self.seconds: list[float] = []  # of each update
        self.rewards: list[float] = []  # of a step, in the rollout before it

    @torch.no_grad()
    def play(self) -> dict[str, Tensor]:
        """A rollout: x (T, B, SIGNS); all else (T, B); h (1, B, H), from before it."""
        h, steps = self.h, []
        for _ in range(STEPS):
            x, first = self.game.look()
            state, self.h = self.gru(x[None], self.h * ~first[:, None])
            policy = self.heads(state[0])[:, :SIGNS].softmax(-1)
            action = policy.multinomial(1, generator=self.generator)[:, 0]
            steps.append((x, first, action, *self.game.act(action)))
        names = ("x", "first", "action", "reward", "over")
        rollout = {n: torch.stack(v) for n, v in zip(names, zip(*steps, strict=True), strict=True)}
        later, returns = self.heads(self.h[0])[:, SIGNS], []  # about what the next steps bring
        for reward, over in zip(rollout["reward"].flip(0), rollout["over"].flip(0), strict=True):
            later = reward + DISCOUNT * later * ~over
            returns.append(later)
        return rollout | {"return": torch.stack(returns[::-1]), "h": h}

    def loss(self, rollout: dict[str, Tensor]) -> Tensor:
        """Policy, value and entropy."""
        states = self.states(self.gru, rollout["x"], rollout["first"], rollout["h"])
        logits, value = self.heads(states).split([SIGNS, 1], -1)
        error = rollout["return"] - value[..., 0]
        policy = Categorical(logits=logits)
        gain = policy.log_prob(rollout["action"]) * error.detach()
        return (0.5 * error.square() - gain - 0.01 * policy.entropy()).mean()

    def update(self) -> None:
        rollout = self.play()
        start = time.perf_counter()
        self.optimizer.zero_grad()
        self.loss(rollout).backward()
        nn.utils.clip_grad_norm_(self.agent.parameters(), 1.0)
        self.optimizer.step()
        self.seconds.append(time.perf_counter() - start)
        self.rewards.append(float(rollout["reward"].mean()))


def gap(learners: dict[str, Learner]) -> float:
    """The largest difference from the loop's gradients, in proportion to the largest of each."""
    player = Learner("loop")
    player.play()  # so that the next rollout begins within episodes
    rollout = player.play()
    of = {
        way: torch.autograd.grad(learner.loss(rollout), list(learner.agent.parameters()))
        for way, learner in learners.items()
    }
    pairs = [pair for found in of.values() for pair in zip(found, of["loop"], strict=True)]
    return max(float((found - want).abs().max() / want.abs().max()) for found, want in pairs)


def draw(record: dict[str, Any], path: Path) -> None:
    """Learning curves over the seconds of learning, and the milliseconds of an update."""
    title = "Actor-critic with a GRU; episodes end in a rollout"
    with side_by_side.picture(2, title, record, path) as axes:
        for way, name in WAYS.items():
            seconds = list(accumulate(record[way]["seconds"]))
            axes[0].plot(seconds, record[way]["rewards"], color=COLOURS[way], label=name)
        axes[0].axhline(1 / SIGNS, color="black", linewidth=0.8, linestyle=":", label="by chance")
        axes[0].set(xlabel="seconds of learning", ylabel="reward of a step", ylim=(0, 1.05))
        axes[0].legend(loc="center right")
        ms = {
            name.replace(", ", ",\n"): median(record[way]["seconds"]) * 1e3
            for way, name in WAYS.items()
        }
        side_by_side.draw_bars(axes[1], ms, COLOURS.values(), "{:.1f} ms")
        axes[1].set(ylabel="milliseconds", title="An update takes")


def parser() -> argparse.ArgumentParser:
    return side_by_side.parser(__doc__)


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    learners = {way: Learner(way) for way in WAYS}
    results: dict[str, Any] = {"gradients_differ_by": gap(learners)}
    for _ in range(3 if asked.quick else 120):
        for learner in learners.values():
            learner.update()
    print(f"{GAMES} games, {STEPS} steps a rollout, {len(learner.seconds)} updates\n")
    for way, learner in learners.items():
        pairs = zip(learners["loop"].seconds, learner.seconds, strict=True)
        faster = median(a / b for a, b in pairs)
        results[way] = {"speed_up": faster, "seconds": learner.seconds, "rewards": learner.rewards}
        said = f"{median(learner.seconds) * 1e3:6.1f} ms an update, {faster:4.1f}x the loop"
        print(f"{WAYS[way]:<20}{said}; reward of a step {learner.rewards[-1]:.2f}")
    print(f"\nGradients differ by at most {results['gradients_differ_by']:.0e}.")
    side_by_side.keep("reinforcement", results, draw, asked)


if __name__ == "__main__":
    main()
