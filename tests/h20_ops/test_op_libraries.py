"""Peers by path: arguments follow the schema a build has, and nothing is left out silently.

The schemas are those of vLLM's and SGLang's builds; behind them stand our twins on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from h20_ops.errors import DependencyError, UnsupportedError
from h20_ops.kv_cache import V4_FP8
from h20_ops.testing.cases_decode import DecodeCase, Scope, make_decode
from h20_ops.testing.cases_prefill import PrefillCase, make_prefill
from h20_ops.testing.compare import normalised_difference
from h20_ops.testing.op_libraries import (
    VARIABLE,
    OpLibrary,
    decode_call,
    load_op_libraries,
    prefill_call,
)
from h20_ops.torch_ref import sparse_mla_decode, sparse_mla_prefill

pytestmark = pytest.mark.torch

PREFILL_TAIL = {
    "vllm": "Tensor? attn_sink, Tensor? topk_length, Tensor? out_) -> Tensor[]",
    "sglang": "Tensor? attn_sink=None, Tensor? topk_length=None) -> Tensor[]",
    "other": "Tensor? attn_sink, int num_sms) -> Tensor[]",
}
DECODE_SCHEMA = (
    "sparse_decode_fwd(Tensor q, Tensor kv, Tensor indices, Tensor? topk_length, "
    "Tensor? attn_sink, Tensor? tile_scheduler_metadata, Tensor? num_splits, Tensor? extra_kv, "
    "Tensor? extra_indices, Tensor? extra_topk_length, int d_v, float sm_scale) "
    "-> (Tensor, Tensor, Tensor?, Tensor?)"
)

Define = Callable[[str, str, Callable[..., Any]], OpLibrary]


@pytest.fixture
def define(request: pytest.FixtureRequest) -> Iterator[Define]:
    """Register an operator under a namespace of this test's own."""
    kept = []

    def register(schema: str, name: str, function: Callable[..., Any]) -> OpLibrary:
        namespace = f"peer_{abs(hash(request.node.name))}"
        library = torch.library.Library(namespace, "FRAGMENT")
        library.define(schema)
        library.impl(name, function, "CompositeExplicitAutograd")
        kept.append(library)
        return OpLibrary(name="peer", namespace=namespace)

    yield register
    kept.clear()


@pytest.mark.parametrize("build", ["vllm", "sglang"])
def test_prefill_is_called_by_the_names_of_either_build(define: Define, build: str) -> None:
    head = "sparse_prefill_fwd(Tensor q, Tensor kv, Tensor indices, float sm_scale, int d_v, "

    def behind(
        q: torch.Tensor,
        kv: torch.Tensor,
        indices: torch.Tensor,
        sm_scale: float,
        d_v: int,
        attn_sink: torch.Tensor | None = None,
        topk_length: torch.Tensor | None = None,
        out_: None = None,
    ) -> list[torch.Tensor]:
        return list(
            sparse_mla_prefill(
                q,
                kv,
                indices,
                sm_scale=sm_scale,
                d_v=d_v,
                attn_sink=attn_sink,
                topk_length=topk_length,
            )
        )

    library = define(head + PREFILL_TAIL[build], "sparse_prefill_fwd", behind)
    made = make_prefill(PrefillCase(s_q=4, s_kv=30, topk=12, heads=2, length=True))
    got = prefill_call(library, made)()
    want = sparse_mla_prefill(
        made.q,
        made.kv,
        made.indices,
        sm_scale=made.sm_scale,
        attn_sink=made.attn_sink,
        topk_length=made.topk_length,
    )
    assert all(a.equal(b) for a, b in zip(got, want, strict=True))


def test_a_build_with_another_interface_is_named(define: Define) -> None:
    head = "sparse_prefill_fwd(Tensor q, Tensor kv, Tensor indices, float sm_scale, int d_v, "
    library = define(head + PREFILL_TAIL["other"], "sparse_prefill_fwd", lambda *_: [])
    made = make_prefill(PrefillCase(s_q=4, s_kv=30, topk=12, heads=2))
    with pytest.raises(UnsupportedError, match="sparse_prefill_fwd wants num_sms"):
        prefill_call(library, made)


def test_decode_gets_the_same_keys_in_584_byte_records(define: Define) -> None:
    metadata_seen: list[bool] = []

    def behind(*values: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        q, kv, indices, length, sink, metadata, _, extra_kv, extra_indices, extra_length = values[
            :10
        ]
        metadata_seen.append(metadata is not None)
        out, lse = sparse_mla_decode(
            q,
            kv,
            indices,
            sm_scale=values[11],
            layout=V4_FP8,
            attn_sink=sink,
            topk_length=length,
            extra_k_cache=extra_kv,
            extra_layout=V4_FP8,
            extra_indices=extra_indices,
            extra_topk_length=extra_length,
        )
        return out, lse.contiguous(), torch.zeros(1), torch.zeros(1)

    library = define(DECODE_SCHEMA, "sparse_decode_fwd", behind)
    case = DecodeCase(
        b=3,
        main=Scope(s_k=40, topk=16, page_size=9, page_stride=9 * 528 + 1056),
        extra=Scope(s_k=60, topk=24, page_size=7),
        heads=2,
        sink=False,
    )
    made = make_decode(case)
    call = decode_call(library, made)
    out = call()[0]
    assert metadata_seen == [False, True], "metadata is made before what is timed"
    want = sparse_mla_decode(made.q, made.k_cache, made.indices, **made.kwargs())[0]
    assert normalised_difference(out, want) < 2e-3, "one more cast of the same keys"


def test_a_path_that_does_not_load_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "missing.so"))
    with pytest.raises(DependencyError, match=r"missing\.so does not load"):
        load_op_libraries()


def test_a_library_without_the_operators_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "other.so"))
    monkeypatch.setattr(torch.ops, "load_library", lambda _: None)
    with pytest.raises(DependencyError, match=r"other\.so registers no sparse_prefill_fwd"):
        load_op_libraries()


def test_without_the_variable_nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert load_op_libraries() == []
