"""store_kv and load_kv on the GPU: bitwise equal to their twins, and named by what they leave."""

from __future__ import annotations

import pytest
import torch

from h20_ops import load_kv, store_kv, torch_ref
from h20_ops.kv_cache import V41_FP4, V41_FP8, KvLayout
from h20_ops.kv_cache.identify import identify_layout
from h20_ops.testing.byte_writer import write_288, write_528
from h20_ops.testing.cases_decode import empty_cache
from h20_ops.testing.compare import check_bitwise
from h20_ops.testing.seeds import generator_for

pytestmark = pytest.mark.gpu

LAYOUTS = [V41_FP8, V41_FP4]


def rows_of_all_sizes(num_rows: int) -> torch.Tensor:
    """bf16 (num_rows, 512): magnitudes from 2^-20 to 2^20, zero rows and zero groups."""
    rng = generator_for(f"kv rows {num_rows}", "cuda")
    size = torch.randint(-20, 21, (num_rows, 1), generator=rng, device="cuda")
    kv = torch.randn((num_rows, 512), generator=rng, device="cuda") * torch.exp2(size.float())
    kv[::7] = 0
    kv[1::5, 64:96] = 0
    return kv.to(torch.bfloat16)


def memory_of(cache: torch.Tensor) -> torch.Tensor:
    return cache.as_strided((cache.shape[0] * cache.stride(0),), (1,), 0)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("page_size", [1, 64, 128, 133, 134])
@pytest.mark.parametrize("num_rows", [1, 233, 67_890])
def test_stores_and_loads_equal_their_twins_bit_by_bit(
    layout: KvLayout, page_size: int, num_rows: int
) -> None:
    pages = num_rows // page_size + 2
    stride = page_size * layout.bytes_per_token + 1056
    ours, twins = (empty_cache(pages, page_size, layout, stride, "cuda") for _ in range(2))
    rng = generator_for(f"slots {layout} {page_size} {num_rows}", "cuda")
    slots = torch.randperm(pages * page_size, generator=rng, device="cuda")[:num_rows]
    slots = slots.to(torch.int32)
    slots[1::9] = -1
    kv = rows_of_all_sizes(num_rows)
    store_kv(ours, slots, kv, layout=layout)
    torch_ref.store_kv(twins, slots, kv, layout=layout)
    check_bitwise("memory with its gaps", memory_of(ours), memory_of(twins))
    loaded = load_kv(ours, slots, layout=layout)
    check_bitwise("loaded", loaded, torch_ref.load_kv(twins, slots, layout=layout))
    assert not loaded.isnan().any(), "poison leaked"


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_what_a_store_leaves_in_memory_has_the_layouts_name(layout: KvLayout) -> None:
    named = identify_layout(
        lambda cache, slots, kv: store_kv(cache, slots, kv, layout=layout),
        bytes_per_token=layout.bytes_per_token,
        page_size=5,
        device="cuda",
    )
    assert named == layout


@pytest.mark.parametrize(("layout", "write"), [(V41_FP8, write_528), (V41_FP4, write_288)], ids=str)
def test_records_of_a_writer_that_shares_no_code_are_loaded(
    layout: KvLayout, write: object
) -> None:
    assert callable(write)
    kv = rows_of_all_sizes(60)
    memory = bytearray(60 * layout.bytes_per_token)
    for slot, row in enumerate(kv.double().tolist()):
        write(memory, 0, slot, row)
    theirs = torch.frombuffer(memory, dtype=torch.uint8).view(5, 12, 1, -1).cuda()
    ours = empty_cache(5, 12, layout, device="cuda")
    slots = torch.arange(60, dtype=torch.int32, device="cuda")
    store_kv(ours, slots, kv, layout=layout)
    check_bitwise("records", ours, theirs)
    check_bitwise(
        "values", load_kv(theirs, slots, layout=layout), load_kv(ours, slots, layout=layout)
    )


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_every_byte_value_is_loaded_exactly(layout: KvLayout) -> None:
    rng = generator_for(f"any bytes {layout}", "cuda")
    shape = (200, 64, 1, layout.bytes_per_token)
    cache = torch.randint(0, 256, shape, generator=rng, device="cuda", dtype=torch.uint8)
    slots = torch.arange(200 * 64, dtype=torch.int32, device="cuda")
    got = load_kv(cache, slots, layout=layout)
    want = torch_ref.load_kv(cache, slots, layout=layout)
    check_bitwise("NaN", got.isnan(), want.isnan())
    check_bitwise("values", got.nan_to_num(), want.nan_to_num())


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_offsets_beyond_two_gigabytes_and_strided_rows(layout: KvLayout) -> None:
    cache = empty_cache(700, 134, layout, 3_128_928, "cuda")
    slots = torch.tensor([690 * 134 + 133, 3], dtype=torch.int32, device="cuda")
    kv = torch.nn.functional.pad(rows_of_all_sizes(2), (0, 64))[:, :512]
    kv[0] = 1.5
    store_kv(cache, slots, kv, layout=layout)
    want = torch_ref.load_kv(cache, slots, layout=layout)
    assert bool((want[0] == 1.5).all())
    check_bitwise("loaded", load_kv(cache, slots, layout=layout), want)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_store_and_a_load_run_inside_a_captured_graph(layout: KvLayout) -> None:
    cache = empty_cache(4, 64, layout, device="cuda")
    slots = torch.arange(30, 60, dtype=torch.int32, device="cuda")
    kv = rows_of_all_sizes(30)
    store_kv(cache, slots, kv, layout=layout)
    load_kv(cache, slots, layout=layout)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        store_kv(cache, slots, kv, layout=layout)
        loaded = load_kv(cache, slots, layout=layout)
    kv.copy_(rows_of_all_sizes(31)[1:])
    graph.replay()
    torch.cuda.synchronize()
    check_bitwise("replayed", loaded, torch_ref.load_kv(cache, slots, layout=layout))


def test_nan_in_a_source_row_is_kept_as_nan() -> None:
    for layout in LAYOUTS:
        cache = empty_cache(1, 4, layout, device="cuda").zero_()
        kv = torch.ones((1, 512), dtype=torch.bfloat16, device="cuda")
        kv[0, 100] = torch.nan
        slot = torch.tensor([2], dtype=torch.int32, device="cuda")
        store_kv(cache, slot, kv, layout=layout)
        loaded = load_kv(cache, slot, layout=layout)[0]
        group = layout.channels_per_scale
        first = 100 // group * group
        assert bool(loaded[first : first + group].isnan().all())
        assert int(loaded.isnan().sum()) == group
