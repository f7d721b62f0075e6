"""The stages side by side on one scale: who holds what at the update, and what a rank sends in a step.

Drawn from recordings alone. A part is what one rank owns, as the player finds it (`payload.owners`); a block is as long
as the bytes that were measured for it. Choosing a stage moves the blocks, with style sheets alone: no script runs, so
it still works in an exported notebook, and on a page that allows no scripts.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

from zerolab import files
from zerolab.player.holdings import held_at_update
from zerolab.runtime import variables
from zerolab.tables import show_bytes
from zerolab.theory import STATE_CATEGORIES

if TYPE_CHECKING:
    from zerolab.recording.recording import Recording

NAMES = {"ddp": "DDP", "zero1": "ZeRO-1", "zero2": "ZeRO-2", "zero3": "ZeRO-3", "fsdp2": "FSDP2"}
RANK_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#a89400", "#5b6270")
"""The colours of the player's light theme (player/palette.js); a test compares them."""
ON_DARK = {0, 7}  # the ranks whose colour carries white letters, the others black ones
MOST_RANKS = 8  # that are drawn
WIDTH, LEFT, RIGHT = 960, 120, 100  # pixels of the picture that moves, and left and right of its blocks
PANEL, MARGIN = 520, 20  # of one stage in the picture of all
ROW, BLOCK, TOP, GAP = 46, 32, 40, 22  # of a rank, of a block, above the ranks, and between two categories
STAY = 4  # seconds of a stage in the picture that moves by itself
FIRST = 1  # seconds before it first moves on a page
MOVES = 0.32  # the part of it in which blocks move
AT_ONCE = "animation-timing-function:step-end"  # what is told of two stages would lie on top of each other
# What is lit as long as a stage is shown: its words, and its card, as a chosen one in strip.css.
LIT = (
    ("told", ".zl-of-{0}", "visibility:visible", "visibility:hidden"),
    ("card", "label:nth-of-type({1})", "box-shadow:inset 0 0 0 2px currentColor", "box-shadow:none"),
)
_STYLE = Path(__file__).with_name("strip.css").read_text("utf-8")


@dataclass(frozen=True)
class Block:
    """One part of one category in the row of one rank; `widths` in pixels by stage, 0 where the rank has none of it."""

    category: str
    rank: int
    part: int
    x: float
    widths: dict[str, float]

    @property
    def shares(self) -> tuple[float, ...]:
        """Of the longest, how long it is under each stage."""
        return tuple(round(width / max(self.widths.values()), 4) for width in self.widths.values())

    def drawn(self, y: float, width: float, look: str = 'class="zl-block"') -> str:
        """As a piece of SVG, with the number of its owner where there is room."""
        colour = self.part % len(RANK_COLOURS)
        shape = f'<rect width="{width:.2f}" height="{BLOCK}" fill="{RANK_COLOURS[colour]}"/>'
        ink = "#fff" if colour in ON_DARK else "#111"
        number = f'<text x="{width / 2:.1f}" y="21" text-anchor="middle" style="fill:{ink}">{self.part}</text>'
        place = f'transform="translate({self.x:.2f} {y:.2f})"'
        return f"<g {place}><g {look}>{shape}{number if width > 14 else ''}</g></g>"


class Strip:
    """Shown in a notebook, it is the picture in which a click moves the shards; `save` writes it for slides.

    The recordings, by stage, are drawn in their order. Raises ValueError if there are none, if they are of different
    numbers of ranks, or if one is too short to have a state.
    """

    def __init__(self, recordings: Mapping[str, "Recording"]) -> None:
        sizes = sorted({recording.world_size for recording in recordings.values()})
        if len(sizes) != 1:
            raise ValueError(f"the recordings are of {sizes} ranks: give one or more, all of as many ranks")
        self.world_size = sizes[0]
        self.held = {stage: held_at_update(recording) for stage, recording in recordings.items()}
        self.sent = {stage: recording.sent for stage, recording in recordings.items()}

    def nbytes(self, stage: str, rank: int = 0) -> int:
        """What a rank holds under a stage, as measured."""
        return round(sum(map(sum, self.held[stage][rank].values())))

    def save(self, path: str | os.PathLike[str], *, moves: bool = False) -> None:
        """Writes an SVG: all stages in one picture for slides, or the one that moves from stage to stage.

        Raises ValueError for a place that cannot be written.
        """
        files.write_text(path, self.animation() if moves else self.picture())

    def __repr__(self) -> str:
        """The same text on every machine."""
        said = (f"{stage} holds {self.nbytes(stage):,} bytes and sends {sent:,}" for stage, sent in self.sent.items())
        return f"strip of {self.world_size} ranks, a rank and step: {'; '.join(said)}"

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        # A stored notebook keeps the picture of all stages, which is the same text on every machine.
        shown = ("image/svg+xml", self.picture()) if variables.static() else ("text/html", self.html())
        return {"text/plain": repr(self), **dict([shown])}

    # In figures and words.

    def _less(self, stage: str) -> str:
        """How much less a rank holds than under the first stage, in percent."""
        first = self.nbytes(next(iter(self.held)))
        held = self.nbytes(stage)
        if held >= first:
            return ""
        less = 100 * (1 - held / first)
        # Rounded down where it would be all, which nobody saves.
        shown = f"{less:.0f}" if less < 99.5 else f"{int(10 * less) / 10}"
        return f"\N{MINUS SIGN}{shown}\N{NO-BREAK SPACE}%"

    def _sends(self, stage: str) -> str:
        """What a rank sends in a step, and how often what it sends under the first stage, where that differs."""
        sent, first = self.sent[stage], next(iter(self.sent.values()))
        times = f" ({sent / first:.3g}\N{MULTIPLICATION SIGN})" if first and sent != first else ""
        return f"sends {show_bytes(sent)}{times}"

    def _title(self, stage: str) -> str:
        less = f" ({self._less(stage)})" if self._less(stage) else ""
        return f"{NAMES.get(stage, stage)}: {show_bytes(self.nbytes(stage))} a rank{less}, {self._sends(stage)}"

    def _sentence(self, stage: str) -> str:
        """How many of the parts a rank keeps, read off what it was seen to hold."""
        kept: dict[Fraction, list[str]] = {}
        for category, parts in self.held[stage][0].items():
            there = sum(any(rank[category][part] for rank in self.held[stage]) for part in range(self.world_size))
            share = Fraction(sum(part > 0 for part in parts), there or 1)
            kept.setdefault(share, []).append(category.replace("_", " "))
        said = [
            f"{'all' if share == 1 else f'{share} of the'} {_listed(names)}" for share, names in sorted(kept.items())
        ]
        return f"{NAMES.get(stage, stage)}: each rank keeps {', and '.join(said)}."

    # The pictures.

    @property
    def _rows(self) -> range:
        return range(min(self.world_size, MOST_RANKS))

    def _blocks(self, left: float, right: float) -> list[Block]:
        """Every part of every category on every rank that is drawn, where it lies under all stages."""
        longest = {
            (category, part): max(rank[category][part] for ranks in self.held.values() for rank in ranks)
            for category in STATE_CATEGORIES
            for part in range(self.world_size)
        }
        scale = (right - left - GAP * (len(STATE_CATEGORIES) - 1)) / sum(longest.values())
        x, blocks = left, []
        for category in STATE_CATEGORIES:
            for part in range(self.world_size):
                for rank in self._rows:
                    widths = {stage: ranks[rank][category][part] * scale for stage, ranks in self.held.items()}
                    blocks.append(Block(category, rank, part, x, widths))
                x += longest[category, part] * scale
            x += GAP
        return blocks

    def _frame(self, blocks: list[Block]) -> str:
        """The categories' names, the ranks' names, and as a ghost what a rank holds that holds everything."""
        out = [f'<text x="0" y="{TOP + ROW * rank + 21}">rank {rank}</text>' for rank in self._rows]
        for category in STATE_CATEGORIES:
            places = [(block.x, max(block.widths.values())) for block in blocks if block.category == category]
            left, right = min(x for x, _ in places), max(x + width for x, width in places)
            name = category.replace("_", " ")
            line = f'<rect x="{left:.1f}" y="{TOP - 6}" width="{right - left:.1f}" height="3"'
            out.append(f'{line} style="fill:var(--{category})"/>')
            out.append(f'<text x="{left:.1f}" y="{TOP - 12}">{name}</text>')
            ghost = f'<rect x="{left:.1f}" width="{right - left:.1f}" height="{BLOCK}" class="zl-ghost"'
            out += [f'{ghost} y="{TOP + ROW * rank}"/>' for rank in self._rows]
        return "".join(out)

    def picture(self) -> str:
        """All stages in two columns, as one SVG on white."""
        blocks = self._blocks(54, PANEL)
        frame, high = self._frame(blocks), TOP + 30 + ROW * len(self._rows)
        panels = []
        for number, stage in enumerate(self.held):
            title = f'<text y="0" class="zl-title">{self._title(stage)}</text>'
            drawn = "".join(b.drawn(TOP + ROW * b.rank, b.widths[stage]) for b in blocks if b.widths[stage])
            place = f"translate({(PANEL + 2 * MARGIN) * (number % 2)} {high * (number // 2)})"
            panels.append(f'<g transform="{place}">{title}{frame}{drawn}</g>')
        width = (PANEL + 2 * MARGIN) * min(2, len(panels))
        box = f'x="{-MARGIN}" y="-30" width="{width}" height="{high * -(-len(panels) // 2) + 16}"'
        return _svg(box, "".join(panels))

    def html(self) -> str:
        """The picture that moves, as a piece of a page: it goes through the stages until one is chosen."""
        chosen = [f'.zl-strip:has(input[value="{number}"]:checked)' for number in range(len(self.held))]
        rules = [
            f"{rule} .zl-block{{--now:var(--of-{number})}}{rule} .zl-of-{number}{{display:revert}}"
            for number, rule in enumerate(chosen)
        ]
        cards = "".join(self._card(number, stage) for number, stage in enumerate(self.held))
        told = "".join(
            f'<p class="zl-of zl-of-{number}">{self._sentence(stage)}</p>' for number, stage in enumerate(self.held)
        )
        view = f"0 0 {WIDTH} {TOP + ROW * len(self._rows)}"
        # A page may have several strips, and what moves on a page has one name for all of it.
        own = f"zl-{crc32(repr(self.held).encode()):x}"
        loop = self._loop(f".{own}:not(:has(:checked)) ", STAY - FIRST, own)
        return (
            f'<form class="zl-strip {own}" dir="ltr"><style>{_STYLE}{loop}{"".join(rules)}'
            f"</style><fieldset><legend>Choose a stage: the shards move</legend>{cards}</fieldset>"
            f'<svg viewBox="{view}" role="img" aria-label="{self!r}">{self._drawing()}</svg><div>{told}</div></form>'
        )

    def animation(self) -> str:
        """The picture that moves as one SVG on white, for a page that shows pictures only, such as a README."""
        heads = "".join(
            f'<text y="-14" class="zl-title zl-of zl-of-{number}">{self._title(stage)}</text>'
            for number, stage in enumerate(self.held)
        )
        box = f'x="{-MARGIN}" y="-46" width="{WIDTH + 2 * MARGIN}" height="{TOP + ROW * len(self._rows) + 56}"'
        return _svg(box, f"{heads}{self._drawing()}", self._loop("", MOVES * STAY))

    @cached_property
    def _wide(self) -> list[Block]:
        return [block for block in self._blocks(LEFT, WIDTH - RIGHT) if any(block.widths.values())]

    @cached_property
    def _patterns(self) -> dict[tuple[float, ...], int]:
        """The ways in which blocks come and go, numbered: each is one animation."""
        return {shares: number for number, shares in enumerate(dict.fromkeys(block.shares for block in self._wide))}

    def _drawing(self) -> str:
        """What both have: the frame, all blocks, and at the end of each row what the rank holds."""
        out = [self._frame(self._wide), *map(self._moving, self._wide)]
        for number, stage in enumerate(self.held):
            end = f'<text x="{WIDTH}" text-anchor="end"'
            ends = [
                f'{end} y="{TOP + ROW * rank + 21}">{show_bytes(self.nbytes(stage, rank))}</text>'
                for rank in self._rows
            ]
            out.append(f'<g class="zl-of zl-end zl-of-{number}">{"".join(ends)}</g>')
        return "".join(out)

    def _loop(self, where: str, gone: float, own: str = "zl") -> str:
        """The style by which everything goes from stage to stage, over and over, `gone` seconds after its beginning.

        What moves has names that begin with `own`.
        """
        count = len(self.held)
        rules = [f"{where}:is(.zl-block,.zl-of,label){{animation:{STAY * count}s -{gone}s ease-in-out infinite}}"]
        for number, shares in enumerate(self._patterns):
            before = [*shares[-1:], *shares]  # a stage begins with the way from the one before it
            moves = [(0.0, _place(shares[-1]))]
            fades = [(0.0, f"opacity:{shares[-1] > 0:d}")]
            for stage, share in enumerate(shares):
                moves += [(stage + MOVES, _place(share)), (stage + 1, _place(share))]
                # Seen all the way, and gone on arrival.
                late, seen = (0.8, 1) if before[stage] else (0.1, int(share > 0))
                fades += [(stage + late * MOVES, f"opacity:{seen}"), (stage + MOVES, f"opacity:{share > 0:d}")]
                fades += [(stage + 1, f"opacity:{share > 0:d}")]
            for name, steps in (("move", moves), ("fade", fades)):
                rules.append(_keyframes(f"{own}-{name}-{number}", [(at / count, what) for at, what in steps]))
            rules.append(f"{where}.zl-p{number}{{animation-name:{own}-move-{number},{own}-fade-{number}}}")
        for number in range(count):
            for name, target, on, off in LIT:
                steps = [(0.0, off), (number / count, off), (number / count, on), ((number + 1) / count, on)]
                rules.append(_keyframes(f"{own}-{name}-{number}", [*steps, ((number + 1) / count, off), (1.0, off)]))
                rules.append(
                    f"{where}{target.format(number, number + 1)}{{animation-name:{own}-{name}-{number};{AT_ONCE}}}"
                )
        return "".join(rules)

    def _card(self, number: int, stage: str) -> str:
        """One stage at a glance: a bar on the scale of all, what a rank holds, and what it sends."""
        longest = max(map(self.nbytes, self.held))
        bar = "".join(
            f'<i class="zl-{category}" style="width:{100 * sum(parts) / longest:.2f}%"></i>'
            for category, parts in self.held[stage][0].items()
        )
        less = f" <em>({self._less(stage)})</em>" if self._less(stage) else ""
        return (
            f'<label><input type="radio" name="stage" value="{number}"><b>{NAMES.get(stage, stage)}</b>'
            f'<span class="zl-track">{bar}</span><span>{show_bytes(self.nbytes(stage))} a rank{less}</span>'
            f"<span>{self._sends(stage)}</span></label>"
        )

    def _moving(self, block: Block) -> str:
        """A block that goes to its owner's row, and fades, where the chosen stage has this rank hold none of it."""
        shares = "".join(f"--of-{number}:{share};" for number, share in enumerate(block.shares))
        look = f'class="zl-block zl-p{self._patterns[block.shares]}"'
        place = f"--away:{(block.part - block.rank) * ROW}px"
        return block.drawn(TOP + ROW * block.rank, max(block.widths.values()), f'{look} style="{shares}{place}"')


def _svg(box: str, inner: str, style: str = "") -> str:
    """A file of its own, on white."""
    view = " ".join(box.split('"')[1::2])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{view}" class="zl-strip" color="#1d2430">'
        f"<style>{_STYLE}{style}</style>"
        f'<rect {box} fill="#fff"/>{inner}</svg>\n'
    )


def _place(share: float) -> str:
    """Where a block is that is so long: at home; or, if there is none, with its owner."""
    return f"transform:scaleX({share:g})" if share else "transform:translateY(var(--away))"


def _keyframes(name: str, steps: list[tuple[float, str]]) -> str:
    """An animation; of two steps at one time the later one holds."""
    at = {f"{100 * time:.4g}%": what for time, what in steps}
    return f"@keyframes {name}{{{''.join(f'{when}{{{what}}}' for when, what in at.items())}}}"


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
