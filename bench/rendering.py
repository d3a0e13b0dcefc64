"""Benchmark: rendering of a prompt."""

from __future__ import annotations

from dataclasses import dataclass

from measurements import Row, Suite, measure

from weakincentives.prompt import MarkdownSection, Prompt

GROUPS, CHILDREN = 10, 4
SECTIONS = GROUPS * (1 + CHILDREN)
RENDERINGS = 50


@dataclass(frozen=True)
class Topic:
    """Parameters of the sections."""

    topic: str
    depth: int


def suite() -> Suite:
    """Rendering only: the tree is built and checked before."""
    prompt = sections().bind(Topic("the sea", 3))

    def render() -> None:
        for _ in range(RENDERINGS):
            if len(prompt.render().sections) != SECTIONS:
                raise RuntimeError("a section is missing")

    reading = measure(render, times=30).divided_by(RENDERINGS)
    return Suite([Row(f"render {SECTIONS} sections", reading)])


def sections() -> Prompt[object]:
    """Ten groups of five sections, two placeholders in each."""
    template = "Say something of ${topic}, at most ${depth} levels deep.\n\nThen go on."
    return Prompt(
        ns="bench",
        key="sections",
        sections=[
            MarkdownSection[Topic](
                title=f"Group {group}",
                key=f"group{group}",
                template=template,
                children=[
                    MarkdownSection[Topic](title=f"Part {part}", key=f"part{part}", template=template)
                    for part in range(CHILDREN)
                ],
            )
            for group in range(GROUPS)
        ],
    )
