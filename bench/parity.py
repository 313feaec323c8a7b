"""What dumping and comparing cost on a CPU: python bench/parity.py [--quick].

Writes bench/results/cpu/parity.json: comparing two dumps (memory, time, against reading both at
300 MB/s) and how much a statistics-only capture slows the reference.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from dih20.parity.capture import phase_of, reference_facts
from dih20.parity.dump import DumpWriter
from v41.config import ModelConfig, RopeScaling
from v41.model import Reference
from v41.numerics import Numerics
from v41.tap import no_tap
from v41.tensors import text_tensors

READ_MB_PER_S = 300
RESULTS = Path(__file__).parent / "results" / "cpu" / "parity.json"

# The canary's shape with every layer kind; weights are random, costs do not depend on them.
CONFIG = ModelConfig(
    num_hidden_layers=6, hidden_size=512, num_attention_heads=2, head_dim=512, vocab_size=1024,
    rms_norm_eps=1e-20, swiglu_limit=10.0, sliding_window=128, rope_theta=10000.0,
    compress_rope_theta=160000.0,
    rope_scaling=RopeScaling(
        factor=16.0, beta_fast=32.0, beta_slow=1.0, original_max_position_embeddings=65536
    ),
    q_lora_rank=128, qk_rope_head_dim=64, o_lora_rank=128, o_groups=2, hc_mult=4, hc_eps=1e-6,
    hc_sinkhorn_iters=20, compress_ratios=(0, 2, 2, 1, 1, 1), kv_source_layer_ids=(1, 3),
    index_source_layer_ids=(1, 3, 5), candidate_source_layer_id=3, candidate_topk_blocks=64,
    candidate_block_size=8, index_topk=64, index_n_heads=8, index_head_dim=128,
    moe_intermediate_size=128, n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=2,
    routed_scaling_factor=1.5, engram_layer_ids=(1,), engram_max_ngram_size=3, engram_n_heads=1,
    engram_head_dim=128, engram_vocab_size=1024, engram_pad_token_id=2,
)  # fmt: skip

_COMPARE = """
import json, sys, time
begun = time.monotonic()
from pathlib import Path
from dih20.parity.compare import compare_dumps
import dih20.parity.diagnosis
started, cpu = time.monotonic(), time.process_time()
comparison = compare_dumps(Path(sys.argv[1]), Path(sys.argv[2]), full=sys.argv[3] == "full")
# not ru_maxrss: a child inherits its parent's across fork and exec
status = open("/proc/self/status").read()
peak_kb = int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
print(json.dumps({
    "import_seconds": started - begun,
    "seconds": time.monotonic() - started,
    "cpu_seconds": time.process_time() - cpu,
    "peak_mb": peak_kb / 1024,
    "first": comparison.verdict.first.site if comparison.verdict.first else None,
}))
"""


def write_pair(folder: Path, size_mb: int, wrong_from: float) -> tuple[Path, Path]:
    """Write two dumps of about size_mb each that differ from a fraction of the way on."""
    facts = reference_facts(CONFIG, mode="trained", weights="bench", data_class="synthetic")
    rows = 4 << 10
    per_tensor_mb = rows * CONFIG.hidden_size * 4 / 1e6
    count = max(round(size_mb / per_tensor_mb), 1)
    names = [
        f"layers.{layer}.{leaf}"
        for layer in range(CONFIG.num_hidden_layers)
        for leaf in (
            "attn.input",
            "attn.norm",
            "attn.output",
            "ffn.input",
            "ffn.norm",
            "ffn.output",
        )
    ]
    names = (names * (count // len(names) + 1))[:count]
    for name, is_b in (("a", False), ("b", True)):
        generator = torch.Generator().manual_seed(0)
        with DumpWriter(folder / name, facts) as dump:
            for number, site in enumerate(names):
                if number % 36 == 0:
                    dump.begin_step("prefill", [[5]], [number])
                tensor = torch.randn(1, rows, CONFIG.hidden_size, generator=generator)
                if is_b and number >= wrong_from * count:
                    tensor = tensor * 1.001
                dump.add(site, tensor)
    return folder / "a", folder / "b"


def measure_compare(size_mb: int, *, full: bool, wrong_from: float = 0.5) -> dict[str, Any]:
    """Compare a generated pair in a process of its own."""
    with tempfile.TemporaryDirectory() as scratch:
        a, b = write_pair(Path(scratch), size_mb, wrong_from)
        size = sum(path.stat().st_size for folder in (a, b) for path in folder.iterdir()) / 1e6
        command = [sys.executable, "-c", _COMPARE, str(a), str(b), "full" if full else "bracket"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return {
        "mb_each": round(size / 2),
        "read": "every tensor" if full else "statistics and bracket",
        "seconds": round(found["seconds"], 2),
        "cpu_seconds": round(found["cpu_seconds"], 2),
        "import_seconds": round(found["import_seconds"], 2),
        "allowed_seconds": round(size / READ_MB_PER_S, 2),
        "peak_mb": round(found["peak_mb"]),
        "first": found["first"],
    }


def random_weights() -> dict[str, torch.Tensor]:
    """Give fp32 weights of plausible size."""
    generator = torch.Generator().manual_seed(0)
    return {
        spec.name: torch.randn(spec.shape, generator=generator) * spec.shape[-1] ** -0.5
        for spec in text_tensors(CONFIG)
    }


def measure_capture(length: int, repeats: int) -> dict[str, Any]:
    """Time a forward pass with and without a statistics-only capture, turn by turn."""
    weights, tokens = random_weights(), torch.randint(5, CONFIG.vocab_size, (1, length))
    ids = torch.arange(CONFIG.vocab_size)
    facts = reference_facts(CONFIG, mode="trained", weights="bench", data_class="synthetic")

    def forward(dump: DumpWriter | None) -> float:
        def tap(site: str, tensor: torch.Tensor) -> torch.Tensor:
            assert dump is not None
            dump.add(site, tensor)
            return tensor

        model = Reference(
            CONFIG, weights, numerics=Numerics.of("trained"), compressed_ids=ids,
            tap=tap if dump else no_tap,
        )  # fmt: skip
        started = time.process_time()
        if dump is not None:
            dump.begin_step(phase_of(0, length), tokens.tolist(), range(length))
        with torch.no_grad():
            model.extend(tokens, model.new_cache())
        return time.process_time() - started

    plain, captured = [], []
    forward(None)
    with tempfile.TemporaryDirectory() as scratch:
        for turn in range(repeats):
            plain.append(forward(None))
            with DumpWriter(Path(scratch) / str(turn), facts, statistics_only=True) as dump:
                captured.append(forward(dump))
    before, after = statistics.median(plain), statistics.median(captured)
    return {
        "tokens": length,
        "cpu_seconds_plain": round(before, 3),
        "cpu_seconds_captured": round(after, 3),
        "slower_by": round(after / before - 1, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size-mb", type=int, default=500)
    parser.add_argument("--large-mb", type=int, default=6000, help="a third pair; 0: none")
    parser.add_argument("--quick", action="store_true", help="small sizes; writes nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    size = 50 if options.quick else options.size_mb
    if options.quick:
        options.large_mb = 0
    compared = [measure_compare(size, full=full) for full in (False, True)]
    if options.large_mb:
        compared.append(measure_compare(options.large_mb, full=False))
    results = {
        "machine": f"{platform.machine()}, torch {torch.__version__}, one thread",
        "compare": compared,
        "statistics_only_capture": measure_capture(200 if options.quick else 1000, 5),
    }
    print(json.dumps(results, indent=1))
    if not options.quick:
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
