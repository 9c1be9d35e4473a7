"""bfloat16, other devices as far as they can be tried without one, and which models are refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen3Config
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from local_servers.memory import OutOfMemory
from local_servers.server_errors import SetupError
from local_servers.tinker.engine import row_exact, training
from local_servers.tinker.engine.adapter import LoraShape, create_adapter
from local_servers.tinker.engine.cached_attention import GroupCache, SampleAttention, Segment
from local_servers.tinker.engine.causal_lm import UNEMBED, RmsNorm, SlotGroup
from local_servers.tinker.engine.lora_engine import Engine
from local_servers.tinker.engine.packing import TreeAttention, pack
from local_servers.tinker.engine.row_exact import (
    TILE,
    Factors,
    RowExactProduct,
    gemm,
    has_bfloat16_kernels,
    has_float32_result,
    product,
    row_exact_sizes,
)
from local_servers.tinker.engine.slot_caches import SlotCache, SlotPool
from local_servers.tinker.engine.training import _Targets, _Unembedding
from local_servers.tinker.engine_types import AdamSettings, SampleSpec, TrainDatum
from local_servers.tinker.served_model import ROUNDED_BYTES, chosen_dtype
from tests.local_servers.tinker_engine.conftest import SHAPE, random_model

SMALL_STEP = AdamSettings(learning_rate=1e-5)


@pytest.fixture(scope="module")
def bfloat16(qwen3_folder: Path) -> Engine:
    return Engine(qwen3_folder, dtype="bfloat16")


@pytest.mark.skipif(not has_bfloat16_kernels(), reason="this processor has no bfloat16 products")
def test_the_memory_that_a_model_needs_counts_its_packed_copies(qwen3_folder: Path, bfloat16: Engine) -> None:
    weights = bfloat16.sampler_weights(None)
    layers = sum(weight.nbytes for name, weight in weights.items() if name != UNEMBED)
    gate_and_up = sum(weight.nbytes for name, weight in weights.items() if name.endswith(("gate_proj", "up_proj")))
    assert bfloat16.needed_bytes >= 2 * layers + gate_and_up + 2 * weights[UNEMBED].nbytes
    assert Engine(qwen3_folder).needed_bytes < 2.1 * (layers + weights[UNEMBED].nbytes)  # float32 has none


def datums_of(engine: Engine, cases: Any, seed: int = 0) -> list[TrainDatum]:
    specs = [SampleSpec(cases.prompt(seed + number, 40), 4, 30, seed=number) for number in range(2)]
    return cases.datums(specs, engine.sample([(engine.sampler_weights(None), spec) for spec in specs]))


def test_bfloat16_computes_what_float32_does_within_its_precision(
    any_folder: Path, cases: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In bfloat16 a group takes a series of micro-batches, in float32 one.
    monkeypatch.setattr(training, "_rows_per_batch", lambda model: 50 if model.dtype == torch.bfloat16 else 2048)
    exact, rounded = Engine(any_folder), Engine(any_folder, dtype="bfloat16")
    datums = datums_of(exact, cases)
    adapters = [engine.create_adapter(8, 0) for engine in (exact, rounded)]
    for _ in range(3):
        outputs, grads = [], []
        for engine, adapter in zip((exact, rounded), adapters, strict=True):
            outputs.append(engine.forward_backward(adapter, datums, "importance_sampling", {}, backward=True))
            assert adapter.grads is not None and {grad.dtype for grad in adapter.grads.values()} == {torch.float32}
            grads.append(torch.cat([adapter.grads[key].flatten() for key in sorted(adapter.grads)]))
            engine.optim_step(adapter, AdamSettings(learning_rate=1e-3))
        expected, found = (np.concatenate(output.logprobs) for output in outputs)
        assert np.abs(found - expected).mean() < 0.05
        assert float((grads[1] - grads[0]).norm() / grads[0].norm()) < 0.15
    assert {value.dtype for pair in adapters[1].moments.values() for value in pair} == {torch.float32}
    assert {param.dtype for param in adapters[1].params.values()} == {torch.float32}


def test_a_bfloat16_sampler_agrees_with_its_trainer(bfloat16: Engine, cases: Any) -> None:
    adapter = bfloat16.create_adapter(8, 0)
    bfloat16.forward_backward(adapter, datums_of(bfloat16, cases), "importance_sampling", {}, backward=True)
    bfloat16.optim_step(adapter, AdamSettings(learning_rate=1e-2))
    spec = SampleSpec(cases.prompt(5, 40), 4, 30)
    (result,) = bfloat16.sample([(bfloat16.sampler_weights(adapter), spec)])
    datums = cases.datums([spec], [result])
    output = bfloat16.forward_backward(adapter, datums, "importance_sampling", {}, backward=False)
    sampled = np.concatenate([sequence.logprobs for sequence in result.sequences])
    trained = np.concatenate([logprobs[len(spec.prompt) - 1 :] for logprobs in output.logprobs])
    assert np.abs(sampled - trained).mean() < 0.02


def test_steps_too_small_for_a_bfloat16_weight_are_not_lost(bfloat16: Engine, cases: Any) -> None:
    adapter = bfloat16.create_adapter(8, 0)
    datums = datums_of(bfloat16, cases)
    losses = []
    for _ in range(10):
        losses.append(bfloat16.forward_backward(adapter, datums, "importance_sampling", {}, backward=True).metrics)
        bfloat16.optim_step(adapter, SMALL_STEP)
    matrix = "model.layers.0.mlp.up_proj"
    base = bfloat16.sampler_weights(None)[matrix]
    delta = adapter.scale * adapter.params[f"{matrix}.lora_B"] @ adapter.params[f"{matrix}.lora_A"]
    unchanged = (base.float() + delta).to(torch.bfloat16) == base
    assert unchanged.float().mean() > 0.8  # merged, most of what was learnt would be gone
    assert losses[-1]["loss:sum"] < losses[0]["loss:sum"] - 0.3, losses


def test_bfloat16_on_the_cpu_gives_the_same_bits_whatever_runs_beside(
    qwen3_folder: Path, bfloat16: Engine, cases: Any
) -> None:
    adapter = bfloat16.create_adapter(8, 0)
    datums = datums_of(bfloat16, cases)
    bfloat16.forward_backward(adapter, datums, "importance_sampling", {}, backward=True)
    bfloat16.optim_step(adapter, SMALL_STEP)
    weights = bfloat16.sampler_weights(adapter)
    jobs = [(weights, SampleSpec(cases.prompt(n, 20 + 9 * n), 1 + n % 3, 20, seed=n)) for n in range(8)]
    assert bfloat16.sample(jobs) == [bfloat16.sample([job])[0] for job in jobs]
    other = Engine(qwen3_folder, dtype="bfloat16")
    again = other.create_adapter(8, 0)
    other.forward_backward(again, datums, "importance_sampling", {}, backward=True)
    other.optim_step(again, SMALL_STEP)
    assert all(torch.equal(again.params[key], adapter.params[key]) for key in adapter.params)


@pytest.mark.parametrize("shape", [(96, 96), (8, 96), (1, 160), (320, 4), (160, 1)])  # low-rank factors too
def test_a_bfloat16_product_is_row_exact(shape: tuple[int, int]) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    x = torch.randn(7 * TILE, shape[1], generator=torch.Generator().manual_seed(2)).bfloat16()
    product = RowExactProduct()
    assert row_exact_sizes(weight) == product.sizes(weight)  # not the last resort of a machine that has none
    whole = product(x, weight)
    torch.testing.assert_close(whole, x @ weight.t(), rtol=1e-2, atol=1e-2)
    for start, stop in ((0, 1), (1, 3), (3, 7)):
        rows = slice(start * TILE, stop * TILE)
        assert torch.equal(product(x[rows], weight), whole[rows])


@pytest.mark.parametrize("rank", [0, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_with_factors_beside_its_matrix_is_row_exact(dtype: torch.dtype, rank: int) -> None:
    generator = torch.Generator().manual_seed(1)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).bfloat16()

    weight, x = drawn(9000, 96), drawn(7 * TILE, 96)
    factors = Factors(drawn(rank, 96), 0.1 * drawn(9000, rank)) if rank else None
    multiply = RowExactProduct()
    assert row_exact_sizes(weight, rank, dtype) == multiply.sizes(weight, rank, dtype)  # not the last resort
    whole = multiply(x.float(), weight, factors, dtype)
    assert whole.dtype == dtype
    expected = x.float() @ weight.float().t()
    if factors is not None:
        expected += (x.float() @ factors.a.float().t()).bfloat16().float() @ factors.b.float().t()
    exact = dtype == torch.float32 and has_float32_result(weight, weight.device)
    # Results are up to 40, where bfloat16 numbers are 0.25 apart; what is added is rounded by itself.
    torch.testing.assert_close(whole.float(), expected, rtol=0, atol=(0.03 if rank else 1e-3) if exact else 0.2)
    for start, stop in ((0, 1), (1, 3), (3, 7)):
        rows = slice(start * TILE, stop * TILE)
        assert torch.equal(multiply(x[rows].float(), weight, factors, dtype), whole[rows])


def test_a_float32_result_is_right_wherever_its_inputs_lie() -> None:
    weight, x = torch.randn(48, 64).bfloat16(), torch.randn(5, 64).bfloat16()
    expected = x.float() @ weight.float().t()
    for rows in (x, x.t().contiguous().t(), torch.randn(5, 200).bfloat16()[:, 30:94].copy_(x)):
        for matrix in (weight, weight.t().contiguous().t()):
            torch.testing.assert_close(product(rows, matrix, None, torch.float32), expected, rtol=0, atol=0.2)
    one = product(x[:1].expand(5, -1), weight, None, torch.float32)
    torch.testing.assert_close(one, expected[:1].expand(5, -1), rtol=0, atol=0.2)
    assert product(x[:0], weight, None, torch.float32).shape == (0, 48)


@pytest.mark.parametrize("has_kernels", [True, False])
def test_factors_too_small_for_a_rounded_result_are_added_to_it(
    has_kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_kernels:
        monkeypatch.setattr(row_exact, "_kernels", lambda: None)
    weight, x = torch.randn(48, 64).bfloat16(), torch.randn(5, 64).bfloat16()
    factors = Factors(torch.randn(4, 64).bfloat16(), 1e-5 * torch.randn(48, 4).bfloat16())
    plain, adapted = (product(x, weight, each, torch.float32) for each in (None, factors))
    expected = (x.float() @ factors.a.float().t()) @ factors.b.float().t()
    torch.testing.assert_close(adapted - plain, expected, rtol=0.05, atol=1e-5)


def test_a_norm_and_its_gradients_are_those_of_transformers() -> None:
    theirs = LlamaRMSNorm(16, eps=1e-5)
    theirs.weight.data = torch.randn(16)
    ours = RmsNorm(theirs)
    x = torch.randn(1, 7, 6, 16)[:, :, 1:5].transpose(1, 2)  # heads of a row, as of queries
    grad = torch.randn(x.shape)
    results = []
    for norm in (theirs, ours):
        leaf = x.detach().clone().requires_grad_()
        out = norm(leaf)
        out.backward(grad)
        results.append((out.detach(), leaf.grad))
    torch.testing.assert_close(results[1], results[0])
    torch.testing.assert_close(ours(x), theirs(x).detach())


@pytest.mark.parametrize("trained", [{"train_attn": False}, {"train_mlp": False}, {}])
def test_a_sampler_and_a_trainer_of_some_matrices_agree(
    qwen3_folder: Path, cases: Any, trained: dict[str, bool]
) -> None:
    engine = Engine(qwen3_folder, dtype="bfloat16")
    adapter = engine.create_adapter(4, 0, **trained)
    for _ in range(2):  # sampled from first: what sampling keeps of the weights is then trained with
        spec = SampleSpec(cases.prompt(0, 20), 4, 30, seed=3)
        results = engine.sample([(engine.sampler_weights(adapter), spec)])
        datums = cases.datums([spec], results)
        found = engine.forward_backward(adapter, datums, "importance_sampling", {}, backward=True).logprobs
        apart = [
            np.abs(row[-len(sequence.logprobs) :] - sequence.logprobs)
            for sequence, row in zip(results[0].sequences, found, strict=True)
        ]
        assert np.concatenate(apart).mean() < 2e-3
        assert all(bool(grad.any()) for name, grad in (adapter.grads or {}).items() if name.endswith("B"))
        engine.optim_step(adapter, AdamSettings(learning_rate=1e-3))


@pytest.mark.parametrize("rows", [0, 1, 31, 600])
@pytest.mark.parametrize("shape", [(96, 64), (1, 5), (577, 33), (200, 3301)])  # one block, and more in each direction
def test_products_with_a_packed_matrix_are_those_with_the_matrix(shape: tuple[int, int], rows: int) -> None:
    outputs, inputs = shape
    weight, x, back = (torch.randn(*each).bfloat16() for each in (shape, (rows, inputs), (rows, outputs)))
    beside = torch.randn(outputs, 3).bfloat16(), torch.randn(3, inputs).bfloat16()
    low, low_back = torch.randn(rows, 3).bfloat16(), torch.randn(rows, 3).bfloat16()
    wide, exact = torch.zeros(rows + 2, outputs), has_bfloat16_kernels()
    precision = {"rtol": 0, "atol": (1e-5 if exact else 4e-2) * inputs**0.5 * 10}
    for _ in range(2):  # the second time it is there already
        out = gemm(x, weight, (low, beside[0]), torch.float32, wide[1:-1])
        expected = x.float() @ weight.float().t() + low.float() @ beside[0].float().t()
        torch.testing.assert_close(out, expected, **precision)
        assert out.data_ptr() == wide[1:-1].data_ptr() and not wide[0].any() and not wide[-1].any()
        found = gemm(back, weight, (low_back, beside[1]), torch.float32, transposed=True)
        torch.testing.assert_close(
            found, back.float() @ weight.float() + low_back.float() @ beside[1].float(), **precision
        )


@pytest.mark.skipif(not has_bfloat16_kernels(), reason="this processor has no bfloat16 products")
@pytest.mark.parametrize("x", [torch.zeros(4, 64), torch.zeros(4, 62).bfloat16()])
def test_what_a_kernel_would_read_as_something_else_is_refused(x: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="for a bfloat16 matrix of 64 inputs"):
        gemm(x, torch.zeros(96, 64).bfloat16())


def test_a_float32_checkpoint_goes_on_in_bfloat16(
    engine: Engine, bfloat16: Engine, cases: Any, trained: Any, tmp_path: Path
) -> None:
    adapter = trained(0)
    engine.save_adapter(adapter, tmp_path, optimizer=True)
    loaded = bfloat16.load_adapter(tmp_path, optimizer=True)
    assert all(torch.equal(loaded.params[key], adapter.params[key]) for key in adapter.params)
    bfloat16.forward_backward(loaded, datums_of(bfloat16, cases), "importance_sampling", {}, backward=True)
    assert bfloat16.optim_step(loaded, SMALL_STEP)["grad_norm"] > 0


@pytest.mark.parametrize(
    ("flags", "size", "device", "expected"),
    [
        ("flags : fpu avx512f avx512_bf16", ROUNDED_BYTES, "cpu", "bfloat16"),
        ("Features : asimd bf16", ROUNDED_BYTES, "cpu", "bfloat16"),
        ("flags : fpu avx2 avx512f", ROUNDED_BYTES, "cpu", "float32"),
        ("flags : fpu avx512_bf16", ROUNDED_BYTES - 1, "cpu", "float32"),
        ("flags : fpu avx512_bf16", ROUNDED_BYTES, "cuda", "float32"),
        ("model name : none", ROUNDED_BYTES, "cpu", "float32"),
    ],
)
def test_a_large_model_is_bfloat16_where_the_processor_multiplies_it(
    flags: str, size: int, device: str, expected: str, tmp_path: Path
) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor : 0\n{flags}\n")
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(size)  # takes no room
    assert chosen_dtype("auto", tmp_path, device, tmp_path / "cpuinfo") == expected
    assert chosen_dtype("bfloat16", tmp_path, device, tmp_path / "cpuinfo") == "bfloat16"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_unembedding_alone_can_be_trained(qwen3_folder: Path, cases: Any, dtype: str) -> None:
    engine = Engine(qwen3_folder, dtype=dtype)
    adapter = engine.create_adapter(4, 0, train_mlp=False, train_attn=False)
    engine.forward_backward(adapter, datums_of(engine, cases), "importance_sampling", {}, backward=True)
    assert engine.optim_step(adapter, SMALL_STEP)["grad_norm"] > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_tensor_is_left_on_the_cpu(dtype: torch.dtype) -> None:
    """The meta device has shapes and no numbers: what this shows is where new tensors are made."""
    heads, kv, d, layer = 4, 2, 16, 0
    sequences = [np.arange(20), np.concatenate([np.arange(12), np.arange(50, 60)])]
    device = torch.device("meta")

    def rows(count: int, width: int) -> torch.Tensor:
        return torch.empty(count, width, d, device=device)

    base = {name: torch.empty(64, 32, device=device, dtype=dtype) for name in ("model.layers.0.mlp.up_proj", UNEMBED)}
    adapter = create_adapter(base, LoraShape(4), 0)
    weights = adapter.adapted_weights(base)
    if dtype == torch.bfloat16:
        group = SlotGroup(("model.layers.0.mlp.up_proj",), [64], base["model.layers.0.mlp.up_proj"])
        (out,) = group.sampled(torch.empty(6, 32, device=device), weights, product)
        assert out.device.type == "meta"
    adapter.add_grads({name: factor.float() for name, factor in adapter.factors(base).items()})
    assert adapter.grads is not None and {grad.device.type for grad in adapter.grads.values()} == {"meta"}
    cache = GroupCache(1, kv, d, 10, 3, device)
    for start, stop in ((0, 6), (6, 10)):
        size = stop - start
        attention = SampleAttention([Segment(0, size, cache, prefill=True)])
        attention(layer, rows(size, heads), rows(size, kv), rows(size, kv), 1.0)
        cache.prompt_filled = stop
    for samples in (3, 2):
        cache.reserve()
        attention = SampleAttention([Segment(0, samples, cache, prefill=False)])
        assert attention(layer, rows(8, heads), rows(8, kv), rows(8, kv), 1.0).device.type == "meta"
        cache.generated += 1
        cache.keep(list(range(samples - 1)))
    pool = SlotPool(1, kv, d, device)
    singles = [SlotCache(10), SlotCache(70)]
    for single in singles:
        pool.reserve(single)
        attention = SampleAttention([Segment(0, single.prompt_length, single, prefill=True)])
        assert attention(layer, rows(96, heads), rows(96, kv), rows(96, kv), 1.0).device.type == "meta"
        single.prompt_filled = single.prompt_length
    attention = SampleAttention([Segment(row, row + 1, single, prefill=False) for row, single in enumerate(singles)])
    assert attention(layer, rows(32, heads), rows(32, kv), rows(32, kv), 1.0).device.type == "meta"
    ((_, (batch,)),) = pack(sequences, 100)
    count = len(batch.tokens)
    out = TreeAttention(batch.groups)(layer, rows(count, heads), rows(count, kv), rows(count, kv), 1.0)
    assert out.device.type == "meta"


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_of_the_unembedding_is_that_of_autograd(dtype: torch.dtype, kept: bool) -> None:
    if dtype == torch.bfloat16 and not has_float32_result(torch.empty(1, dtype=dtype), torch.device("cpu")):
        pytest.skip("no bfloat16 products with a float32 result here: the unembedding is float32 and merged")
    generator = torch.Generator().manual_seed(0)
    hidden, unembed, a, b = (
        torch.randn(*shape, generator=generator) for shape in ((5, 32), (40, 32), (4, 32), (40, 4))
    )
    merged = unembed + b @ a if dtype == torch.float32 else unembed
    weights = {UNEMBED: merged.to(dtype), f"{UNEMBED}.lora_A": a.to(dtype), f"{UNEMBED}.lora_B": b.to(dtype)}
    grads = {name: torch.zeros(value.shape) for name, value in weights.items() if name != UNEMBED}
    targets = _Targets(torch.tensor([0, 1, 1, 4]), torch.tensor([3, 7, 39, 0]))
    slopes = torch.tensor([1.0, -0.5, 2.0, 0.3])
    unembedding = _Unembedding(hidden, weights, targets)
    if kept:
        unembedding.target_logprobs(keep=True)
    found = unembedding.backward(slopes, weights[UNEMBED], grads)
    x, left, right = (value.clone().requires_grad_() for value in (hidden, a, b))
    logprobs = (x @ unembed.t() + x @ left.t() @ right.t()).log_softmax(dim=1)
    (slopes * logprobs[targets.rows, targets.tokens]).sum().backward()
    for mine, leaf in ((found, x), (grads[f"{UNEMBED}.lora_A"], left), (grads[f"{UNEMBED}.lora_B"], right)):
        assert leaf.grad is not None
        assert float((mine - leaf.grad).norm() / leaf.grad.norm()) < (1e-5 if dtype == torch.float32 else 2e-2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("architecture", "more"),
    [
        ("mistral", {"sliding_window": None}),
        ("gemma", {}),
        ("phi3", {"pad_token_id": 0}),
        ("granite", {"logits_scaling": 6.0, "residual_multiplier": 0.22}),
    ],
)
def test_other_dense_models_run(
    architecture: str, more: dict[str, Any], dtype: str, tmp_path: Path, cases: Any
) -> None:
    random_model(architecture, **SHAPE, **more).save_pretrained(tmp_path)
    engine = Engine(tmp_path, dtype=dtype)  # refuses a model whose logits are not those of transformers
    adapter = engine.create_adapter(4, 0)
    engine.forward_backward(adapter, datums_of(engine, cases), "importance_sampling", {}, backward=True)
    assert engine.optim_step(adapter, SMALL_STEP)["grad_norm"] > 0


def test_a_model_without_rotary_embedding_is_refused(tmp_path: Path) -> None:
    random_model("gpt2", vocab_size=64, n_embd=32, n_layer=1, n_head=2).save_pretrained(tmp_path)
    with pytest.raises(SetupError, match="gpt2 has no rotary embedding"):
        Engine(tmp_path)


def test_a_model_that_caps_its_logits_is_refused(tmp_path: Path) -> None:
    random_model("gemma2", **SHAPE | {"num_hidden_layers": 1}).save_pretrained(tmp_path)
    with pytest.raises(SetupError, match="gemma2 caps its logits"):
        Engine(tmp_path, dtype="bfloat16")


def test_a_model_that_does_not_fit_is_refused_before_it_is_loaded(tmp_path: Path) -> None:
    Qwen3Config(hidden_size=1 << 16, intermediate_size=1 << 18, num_hidden_layers=80).save_pretrained(tmp_path)
    with pytest.raises(OutOfMemory, match=r"in float32 needs [0-9.]+ GiB.*--dtype bfloat16"):
        Engine(tmp_path)
