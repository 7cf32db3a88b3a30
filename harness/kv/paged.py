"""vLLM's paged pool: groups of layers that share block tables, and blocks per request.

A block id belongs to one group at a time, so a block is as large as the largest group's
pages, and a request draws blocks for every group from the one pool. Sources: vLLM 0.32
``v1/core/kv_cache_utils.py`` (grouping, page-size unification, capacity),
``v1/kv_cache_interface.py`` (blocks per request), ``platforms/interface.py`` (attention
blocks of models with constant states).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from harness.kv.bytes import layer_bytes
from harness.kv.capacity import ceil_div
from harness.kv.dtypes import KvDtype, state_bytes
from harness.kv.engine import Engine
from harness.kv.layers import Layer
from harness.kv.spec import ModelSpec
from harness.kv.units import counted


@dataclass(frozen=True)
class Page:
    """One layer's page: what a block of its group holds for it."""

    layer: Layer
    block_size: int
    page_bytes: int
    token_bytes: int

    @property
    def is_state(self) -> bool:
        """Whether the page is a constant state, whatever the block size."""
        return self.layer.kind == "state"


@dataclass(frozen=True)
class Group:
    """Layers that share one block table."""

    layer: Layer
    layers: int
    block_size: int
    block_bytes: int

    def blocks(self, tokens: int, engine: Engine) -> int:
        """Blocks that the group holds at most for a request of ``tokens`` tokens."""
        if self.layer.kind == "state":
            return 2 + self.layer.checkpoints if engine.prefix_caching else 1
        if self.layer.kind == "cross":
            return ceil_div(self.layer.positions or 0, self.block_size)
        blocks = ceil_div(tokens, self.block_size)
        return min(blocks, self.window_blocks(engine)) if self.layer.window else blocks

    def startup_blocks(self, engine: Engine) -> int:
        """As ``blocks`` at max_model_len, the way vLLM counts when it states its capacity."""
        if self.layer.kind == "cross":
            return ceil_div(engine.max_num_batched_tokens, self.block_size)
        if self.layer.window:
            return self.window_blocks(engine)
        return self.blocks(engine.max_model_len, engine)

    def window_blocks(self, engine: Engine) -> int:
        """Blocks of a windowed layer: the window, what is in flight, and a started block.

        A chunk starts at a block boundary, so that a chunked layer needs no extra block.
        """
        window = self.layer.window or 0
        sliding = self.layer.kind == "sliding"
        held = window - 1 if sliding else window
        tokens = min(held + engine.in_flight_tokens, engine.max_model_len)
        return ceil_div(tokens, self.block_size) + (1 if sliding else 0)


@dataclass(frozen=True)
class PagedLayout:
    """How vLLM lays a model's cache out in blocks."""

    groups: tuple[Group, ...]
    block_bytes: int
    #: padding and block sizes that differ from the setting, for the reader
    notes: tuple[str, ...] = ()

    def blocks_per_request(self, tokens: int, engine: Engine) -> int:
        """Blocks that a request of ``tokens`` tokens holds at its fullest, over all groups."""
        return sum(group.blocks(tokens, engine) for group in self.groups)

    def startup_blocks(self, engine: Engine) -> int:
        """Blocks of a request at max_model_len, as vLLM's log counts them."""
        return sum(group.startup_blocks(engine) for group in self.groups)


def paged_layout(spec: ModelSpec, dtype: KvDtype, engine: Engine) -> PagedLayout:
    """Group the layers as vLLM does; raises OptionError for an impossible split."""
    notes: list[str] = []
    pages = _pages(spec, dtype, engine, notes)
    if not engine.hybrid_manager:
        pages = _promoted(pages, notes)
    if _one_type(pages):
        block = sum(page.page_bytes for page in pages)
        group = Group(pages[0].layer, len(pages), pages[0].block_size, block)
        return PagedLayout((group,), block, tuple(notes))
    groups = _groups(_unified(pages, notes), notes)
    return PagedLayout(groups, max(group.block_bytes for group in groups), tuple(notes))


def _pages(spec: ModelSpec, dtype: KvDtype, engine: Engine, notes: list[str]) -> list[Page]:
    own = [layer for layer in spec.layers if layer.kind != "shared"]
    states = [state_bytes(layer.state, engine.tp, dtype) for layer in own if layer.kind == "state"]
    tokens = [layer_bytes(layer, spec, dtype, engine.tp) for layer in own]
    block = engine.block_size
    attention = [cost for cost, layer in zip(tokens, own, strict=True) if layer.kind != "state"]
    if states and attention:
        block = _block_over_state(max(states), attention[0], engine, own, notes)
    pages = []
    for layer, cost in zip(own, tokens, strict=True):
        if layer.kind == "state":
            page = state_bytes(layer.state, engine.tp, dtype)
            # with attention beside it, a state page is padded to the attention page
            pages.append(
                Page(layer, block, max(page, block * attention[0]) if attention else page, 0)
            )
        else:
            pages.append(Page(layer, block, block * cost, cost))
    return pages


def _block_over_state(
    state: int, token: int, engine: Engine, layers: list[Layer], notes: list[str]
) -> int:
    """The attention block whose page covers one state, in steps of the configured block."""
    step = max(engine.block_size, 32 if engine.device == "cpu" else 16)
    if any(layer.kind == "latent" for layer in layers):
        step = max(step, 128)
    block = max(engine.block_size, step * ceil_div(state, step * token))
    if block != engine.block_size:
        notes.append(
            f"attention block = {step} x ceil({state:,} B of state / ({step} x {token:,} B)) = "
            f"{counted(block, 'token')}, so that an attention page covers a state"
        )
    return block


def _promoted(pages: list[Page], notes: list[str]) -> list[Page]:
    """Without the hybrid manager, windowed layers beside full ones get blocks for all tokens."""
    if _one_type(pages) or not any(page.layer.kind in ("full", "latent") for page in pages):
        return pages
    notes.append("windowed layers get blocks for all tokens (no hybrid KV cache manager)")
    return [
        replace(page, layer=replace(page.layer, kind="full", window=None))
        if page.layer.window is not None
        else page
        for page in pages
    ]


def _one_type(pages: list[Page]) -> bool:
    """Whether all layers always need the same number of token slots."""
    kinds = {page.layer.kind for page in pages}
    if kinds <= {"full", "latent"}:
        return True
    if len(kinds) > 1 or len({page.layer.window for page in pages}) > 1:
        return False
    return kinds != {"state"} or len({page.page_bytes for page in pages}) == 1


def _unified(pages: list[Page], notes: list[str]) -> list[Page]:
    """All pages as large as the largest: more tokens per block, or padding."""
    largest = max(page.page_bytes for page in pages)
    unified, padded = [], 0
    for page in pages:
        if page.page_bytes == largest:
            unified.append(page)
        elif not page.is_state and largest % page.page_bytes == 0:
            block = page.block_size * (largest // page.page_bytes)
            unified.append(replace(page, block_size=block, page_bytes=largest))
        else:
            padded += largest - page.page_bytes
            unified.append(replace(page, page_bytes=largest))
    if padded:
        notes.append(f"pages are padded to {largest:,} B: {padded:,} B lost per block over all")
    return unified


def _groups(pages: list[Page], notes: list[str]) -> tuple[Group, ...]:
    """Groups of equally many layers: the smallest kind sets the size.

    When the largest kind has less than one and a half times as many, it sets the size
    instead, so that few layers are padded.
    """
    buckets = Counter((page.layer, page.block_size, page.page_bytes) for page in pages)
    smallest, largest = min(buckets.values()), max(buckets.values())
    size = largest if largest < 1.5 * smallest else smallest
    groups: list[Group] = []
    for (layer, block_size, page_bytes), count in buckets.items():
        number = ceil_div(count, size)
        missing = number * size - count
        if missing:
            notes.append(
                f"{counted(count, f'{layer.kind} layer')} in {counted(number, 'group')} of {size}: "
                f"{missing} padded"
            )
        for index in range(number):
            members = len(range(index, count, number))
            groups.append(Group(layer, members, block_size, members * page_bytes))
    return tuple(groups)
