"""The reference behind the driver's interface, in a module tree of the engine's shape."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from dih20.engine_check.driver import Ask, Reply, StepRow
from dih20.engine_check.engine_sites import (
    chosen_in_pages,
    chosen_mask,
    compressed_entries,
    index_entries,
)
from dih20.engine_check.loaded_weights import held_tensors
from h20_ops.formats import GROUP_RULES, quantise_groups
from v41.canary.answering import Canary
from v41.checkpoint import CheckpointReader
from v41.checkpoint.blocks import quantise_blocks
from v41.model import Reference
from v41.numerics import Numerics

_KNOWN: dict[tuple[int, ...], tuple[Any, str]] = {}  # tokens -> logits and the cache's hash
_WINDOW, _RING, _STATE, _PAGES = 128, 129, 1, (3, 1, 7, 4, 9, 2, 8, 6)


class Method(torch.nn.Module):  # type: ignore[misc]
    """Methods that hand on what they are given, in the places where the engine's hand over theirs."""

    def forward(self, x: Any) -> Any:
        return x

    def attn_norm_forward(self, x: Any) -> Any:
        return None, x, None

    ffn_norm_forward = attn_norm_forward

    def _q_b_norm_rope(self, x: Any) -> Any:
        return x

    _wv_and_o_proj = shared_forward = _q_b_norm_rope

    def _prefill_attention(
        self, q_b: Any, kv_ca_index: Any, kv_swa_full_index: Any, total_k_swa_cached: int,
        input_metadata: Any,
    ) -> Any:  # fmt: skip
        return q_b

    def _decode_attention(
        self, q_b: Any, kv_ca_index: Any, kv_swa_index: Any, kv_cache: Any, input_metadata: Any
    ) -> Any:
        return q_b

    def gate_forward(self, ids: Any, weights: Any) -> Any:
        return ids, weights

    def _prepare_swa_kv(self, kv: Any, swa_cache: Any, input_metadata: Any) -> Any:
        if input_metadata.is_prompt:
            return kv.unsqueeze(1), None
        codes, scales = quantise_groups(kv.float(), GROUP_RULES["fp8_32_ue8m0"])
        slot = int(input_metadata.slot_mapping_store_swa[0])
        swa_cache[slot // _RING, slot % _RING, 0] = torch.cat((codes[0], scales[0]))
        return None, None

    def forward_store_kv_cache(
        self, projected_kv: Any, kv_cache: Any, state_cache: Any, input_metadata: Any, *,
        return_pre_rope_kv: bool,
    ) -> None:  # fmt: skip
        size = kv_cache.shape[1]
        codes, scales = quantise_groups(projected_kv.float(), GROUP_RULES["fp4_16_e4m3"])
        for number, slot in enumerate(s for s in input_metadata.slots.tolist() if s >= 0):
            kv_cache[slot // size, slot % size, 0] = torch.cat((codes[number], scales[number]))

    def store_index_kv(self, index_k_input: Any, index_k_cache: Any, input_metadata: Any) -> None:
        size = index_k_cache.shape[1]
        codes, scales = quantise_groups(index_k_input.float(), GROUP_RULES["fp4_32_ue8m0"])
        for number, slot in enumerate(s for s in input_metadata.slots.tolist() if s >= 0):
            page, inside = index_k_cache[slot // size].view(-1), slot % size
            page[inside * 64 : inside * 64 + 64] = codes[number]
            page[size * 64 + inside * 4 : size * 64 + inside * 4 + 4] = scales[number]

    def _quantize_q(self, codes: Any, packed: Any) -> Any:
        return codes, packed

    def _topk_prefill(self, ids: Any, input_metadata: Any) -> Any:
        return ids

    def _topk_decode(self, ids: Any, input_metadata: Any, kv_cache: Any) -> Any:
        return ids


class FakeModel(torch.nn.Module):  # type: ignore[misc]
    """The engine's names; forward runs the reference and passes its tensors through them."""

    def __init__(self, canary: Canary, checkpoint: Path) -> None:
        super().__init__()
        self.canary = canary
        self.model = Method()
        self.model.embed_tokens, self.model.output_norm = Method(), Method()
        layers = []
        for kind in canary.config.layers:
            layer = Method()
            layer.self_attn, layer.mlp = Method(), Method()
            if kind.owns_index:
                layer.self_attn.index_attn = Method()
            if kind.owns_kv:
                layer.self_attn.PackedWkv = Method()
            if kind.engram:
                layer.engram = Method()
            layers.append(layer)
        self.model.layers = torch.nn.ModuleList(layers)
        self.pages: dict[tuple[str, int], torch.Tensor] = {}  # of compressed entries, index keys
        self._selected: dict[int | None, torch.Tensor] = {}  # index source -> entries
        self.swa = torch.zeros(3, _RING, 1, 528, dtype=torch.uint8)
        self._hold_weights(checkpoint)

    def _hold_weights(self, checkpoint: Path) -> None:
        """Put every tensor where the engine has it, 8-bit ones with scales over 128x128."""
        specs = {spec.name: spec for spec in CheckpointReader(checkpoint).specs}
        for held in held_tensors(self.canary.config):
            parts = [self.canary.weights[name] for name in held.parts]
            whole = torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])
            if specs[held.parts[0]].storage in ("fp8", "fp4"):
                codes, scales = quantise_blocks(whole, 128)
                tensor = codes.view(torch.float8_e4m3fn)
                sf = torch.ldexp(torch.ones(scales.shape), scales.int() - 127)
                if held.experts:
                    tensor = tensor.unflatten(0, (held.experts, -1))
                    sf = sf.unflatten(0, (held.experts, -1))
                tensor.sf = sf
            else:
                tensor = whole.squeeze(0) if parts[0].dim() == 1 else whole
            *path, name = held.at.split(".")
            place: Any = self
            for step in path:
                if not hasattr(place, step):
                    object.__setattr__(place, step, SimpleNamespace())
                place = place[int(step)] if step.isdigit() else getattr(place, step)
            object.__setattr__(place, name, tensor)

    def forward(self, kv_caches: Any, input_metadata: Any) -> torch.Tensor:
        reference = Reference(
            self.canary.config,
            self.canary.weights,
            numerics=Numerics.of("sm90"),
            compressed_ids=self.canary.compressed,
            tap=lambda site, tensor: self._pass(site, tensor, input_metadata),
        )
        return reference.extend(input_metadata.input_ids.unsqueeze(0), kv_caches)[0]

    def _pass(self, site: str, tensor: torch.Tensor, metadata: Any) -> torch.Tensor:
        """Hand a tensor over in the engine's form; go on with what comes back, as an engine does."""
        if site == "embed":
            self.model.embed_tokens(tensor[0].bfloat16())
        elif site == "final_norm":
            self.model.output_norm(tensor[0].bfloat16())
        if not site.startswith("layers."):
            return tensor
        _, number, part, leaf = site.split(".")
        layer = self.model.layers[int(number)]
        flat = tensor if tensor.dim() == 2 else tensor[0]
        handler = getattr(self, f"_{part}_{leaf}", None)
        back = None if handler is None else handler(layer, flat, metadata)
        if back is None or back.numel() != tensor.numel():
            return tensor
        return back.to(tensor.dtype).view(tensor.shape)

    def _attn_norm(self, layer: Any, x: torch.Tensor, metadata: Any) -> Any:
        return layer.attn_norm_forward(x.bfloat16())[1]

    def _attn_q(self, layer: Any, x: torch.Tensor, metadata: Any) -> Any:
        return layer.self_attn._q_b_norm_rope(x.bfloat16())

    def _attn_window_kv(self, layer: Any, x: torch.Tensor, metadata: Any) -> None:
        layer.self_attn._prepare_swa_kv(x, self.swa, metadata)

    def _attn_compressed_kv(self, layer: Any, x: torch.Tensor, metadata: Any) -> Any:
        cache, kept = self._stored("entries", 288, layer, metadata)
        compressor = layer.self_attn.PackedWkv
        compressor.forward_store_kv_cache(x, cache, None, metadata, return_pre_rope_kv=True)
        return compressed_entries(cache, kept)[0] if len(kept) else None

    def _attn_index_key(self, layer: Any, x: torch.Tensor, metadata: Any) -> Any:
        cache, kept = self._stored("keys", 68, layer, metadata)
        layer.self_attn.index_attn.store_index_kv(x, cache, metadata)
        return index_entries(cache, kept)[0] if len(kept) else None

    def _stored(self, what: str, record: int, layer: Any, metadata: Any) -> tuple[Any, Any]:
        """Give the layer's pages, and the slots of this step's entries, which the metadata gets too."""
        ratio = self.canary.config.layer(list(self.model.layers).index(layer)).ratio
        size = 128 // ratio
        empty = torch.zeros(10, size, 1, record, dtype=torch.uint8)
        cache = self.pages.setdefault((what, ratio), empty)
        entries = metadata.positions // ratio
        slots = torch.tensor(_PAGES)[entries // size] * size + entries % size
        slots = torch.where((metadata.positions + 1) % ratio == 0, slots, -1)
        if metadata.is_prompt:
            slots = slots[slots >= 0]
        metadata.slot_mapping_store_ca[str(ratio)] = metadata.slots = slots
        return cache, slots[slots >= 0]

    def _attn_index_query(self, layer: Any, x: torch.Tensor, metadata: Any) -> None:
        codes, scales = quantise_groups(x, GROUP_RULES["fp4_32_ue8m0"])
        packed = scales.contiguous().view(torch.int32).squeeze(-1)
        layer.self_attn.index_attn._quantize_q(codes.view(torch.int8), packed)

    def _attn_chosen(self, layer: Any, x: torch.Tensor, metadata: Any) -> Any:
        ids = torch.full((x.shape[0], 64), -1)
        for row, mask in enumerate(x):
            chosen = mask.nonzero().flatten()
            ids[row, : len(chosen)] = chosen
        index = layer.self_attn.index_attn
        number = list(self.model.layers).index(layer)
        if metadata.is_prompt:
            ids = self._selected[number] = index._topk_prefill(ids, metadata)
            return chosen_mask(ids, x.shape[-1], ids >= 0)
        size = 128 // self.canary.config.layer(number).ratio
        pages = torch.tensor(_PAGES)[ids.clamp_min(0) // size]
        slots = torch.where(ids < 0, -1, pages * size + ids % size)
        slots = index._topk_decode(slots, metadata, torch.empty(10, size, 1, 68))
        self._selected[number] = slots
        return chosen_in_pages(slots, _PAGES, size, x.shape[-1])

    def _attn_context(self, layer: Any, x: torch.Tensor, metadata: Any) -> Any:
        number = list(self.model.layers).index(layer)
        kind = self.canary.config.layer(number)
        selected = self._selected[kind.index_source] if kind.ratio else None
        if metadata.is_prompt:
            return layer.self_attn._prefill_attention(
                x.bfloat16(), selected, metadata.kv_swa_full_index, 0, metadata
            )
        pages = torch.empty(10, 128 // kind.ratio, 1, 288) if kind.ratio else None
        cache = SimpleNamespace(swa_cache=self.swa, ca_cache=pages)
        return layer.self_attn._decode_attention(
            x.bfloat16(), selected, metadata.kv_swa_index, cache, metadata
        )

    def _attn_output(self, layer: Any, x: torch.Tensor, metadata: Any) -> Any:
        return layer.self_attn._wv_and_o_proj(x.bfloat16())

    def _ffn_norm(self, layer: Any, x: torch.Tensor, metadata: Any) -> Any:
        return layer.ffn_norm_forward(x.bfloat16())[1]

    def _ffn_expert_ids(self, layer: Any, x: torch.Tensor, metadata: Any) -> None:
        self._ids = x

    def _ffn_expert_weights(self, layer: Any, x: torch.Tensor, metadata: Any) -> None:
        layer.mlp.gate_forward(self._ids, x)

    def _ffn_shared(self, layer: Any, x: torch.Tensor, metadata: Any) -> Any:
        call = layer.mlp.shared_forward
        return call(x.bfloat16()) if callable(call) else None

    def _ffn_output(self, layer: Any, x: torch.Tensor, metadata: Any) -> Any:
        return layer.mlp(x.bfloat16())

    def _engram_streams(self, layer: Any, x: torch.Tensor, metadata: Any) -> Any:
        return layer.engram(x.bfloat16())


class FakeDriver:
    """See driver.Driver. guard: what sync_guard does when it is entered; graphs: what captured
    graphs change of the logits."""

    def __init__(self, canary: Canary, checkpoint: Path) -> None:
        self.canary = canary
        self.model = FakeModel(canary, checkpoint)
        self.change: Callable[[Any], Any] = lambda logits: logits
        self.graphs: Callable[[Any], Any] = lambda logits: logits
        self.guard: Callable[[], None] = lambda: None
        self.closed = self.overlapping = False
        self.has_graphs, self._replays = True, 0
        self._eager = False
        self._rows: list[StepRow] | None = None

    def skip_step(self) -> bool:
        return self._skipping

    def generate(self, asks: Sequence[Ask]) -> list[Reply]:
        with torch.no_grad():
            self._skipping = True  # an engine runs such passes while a request is not ready
            if self._watched():
                self._step([0], 0, self._new())
            self._skipping = False
            return [self._one(number, ask) for number, ask in enumerate(asks)]

    def graph_replays(self) -> int:
        return self._replays

    def overlaps(self) -> bool:
        return self.overlapping

    def _new(self) -> Any:
        return self.canary.model().new_cache()

    def _step(self, tokens: Sequence[int], first: int, cache: Any) -> torch.Tensor:
        count = len(tokens)
        positions = torch.arange(first, first + count)
        window = positions.unsqueeze(1) - torch.arange(_WINDOW)
        visible = {str(ratio): (positions + 1) // ratio for ratio in (1, 2)}
        slots = _STATE * _RING + window % _RING
        metadata = SimpleNamespace(
            is_prompt=first == 0,
            input_ids=torch.tensor(list(tokens)),
            positions=positions,
            context_lens=positions + 1,
            kv_swa_full_index=torch.where(window < 0, -1, window),
            kv_swa_index=torch.where(window < 0, -1, slots),
            klen=visible,
            ke=dict(visible),
            slot_mapping_store_ca={},
            ks={key: torch.zeros_like(positions) for key in visible},
            block_tables=torch.tensor([_PAGES]),
            slot_mapping_store_swa=torch.tensor([_STATE * _RING + first % _RING]),
        )
        return self.model(kv_caches=cache, input_metadata=metadata)

    def _watched(self) -> bool:
        first = self.model.model.layers[0].self_attn
        return "forward" in vars(self.model) or "_decode_attention" in vars(first)

    def _logits(self, tokens: tuple[int, ...], first: int, cache: Any) -> tuple[Any, str]:
        """Give logits and a hash of the cache; what no capture watches is computed once."""
        if self._watched():
            return self._step(tokens[first:], first, cache), ""
        if tokens not in _KNOWN:
            if cache.length < first:  # what came before was known: run it again for its cache
                self._step(tokens[:first], 0, cache)
            logits = self._step(tokens[first:], first, cache)
            state = hashlib.sha256(cache.layers[0].window.numpy().tobytes()).hexdigest()
            _KNOWN[tokens] = (logits if first == 0 else logits[-1:], state)
        return _KNOWN[tokens]

    def _one(self, number: int, ask: Ask) -> Reply:
        cache, reply, tokens = self._new(), Reply(), ask.prompt
        logits, state = self._logits(tokens, 0, cache)
        if ask.prompt_logprobs:
            rows = torch.log_softmax(logits[:-1], -1)
            reply.prompt_logprobs = rows.gather(1, torch.tensor(ask.prompt)[1:, None])[
                :, 0
            ].tolist()
        for step in range(ask.max_tokens):
            row = self.change(logits[-1:])[0]
            if step and not self._eager and self.has_graphs:
                row = self.graphs(row)
                self._replays += 1
            if step and self._rows is not None:
                self._rows.append(StepRow(request=number, step=step - 1, logits=row, cache=state))
            best = int(row.argmax())
            token = ask.golden[step] if ask.golden else best
            reply.tokens.append(token)
            reply.best.append(best)
            reply.logprobs.append(float(torch.log_softmax(row, -1)[token]))
            if token == 1 and not (ask.golden or ask.past_end):
                break
            if step + 1 < ask.max_tokens:
                tokens = (*tokens, token)
                logits, state = self._logits(tokens, len(tokens) - 1, cache)
        return reply

    @contextmanager
    def sync_guard(self) -> Iterator[None]:
        self.guard()
        yield

    @contextmanager
    def eager(self) -> Iterator[None]:
        self._eager = True
        yield
        self._eager = False

    @contextmanager
    def logits_through(self, change: Callable[[Any], Any]) -> Iterator[None]:
        before = self.change
        self.change = lambda logits: change(before(logits))
        yield
        self.change = before

    @contextmanager
    def step_rows(self) -> Iterator[list[StepRow]]:
        self._rows = []
        yield self._rows
        self._rows = None

    def clear_caches(self) -> None:
        self.model.swa.zero_()

    def close(self) -> None:
        self.closed = True
