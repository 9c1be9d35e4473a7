"""The losses' settings and slopes, and Adam against torch's."""

import numpy as np
import pytest
import torch

from local_servers.tinker.engine.adapter import Adapter, LoraShape, adam_step
from local_servers.tinker.engine.losses import checked_config, scored_tokens, token_losses
from local_servers.tinker.engine_types import AdamSettings, SamplerTopK, TrainDatum
from local_servers.tinker.refusal import BadRequest


def rl_datum(ratios: list[float], advantages: list[float]) -> tuple[TrainDatum, np.ndarray]:
    """A datum and learner log-probabilities with these ratios."""
    current = np.full(len(ratios), -1.0, dtype=np.float32)
    sampled = current - np.log(np.array(ratios)).astype(np.float32)
    inputs = {"logprobs": sampled, "advantages": np.array(advantages, dtype=np.float32)}
    return TrainDatum(np.arange(len(ratios)), inputs), current


@pytest.mark.parametrize(
    ("loss", "losses", "slopes"),
    [
        ("importance_sampling", [-1.5, 1.5, -0.5, 0.5, -1.0], [-1.5, 1.5, -0.5, 0.5, -1.0]),
        ("ppo", [-1.2, 1.5, -0.5, 0.8, -1.0], [0.0, 1.5, -0.5, 0.0, -1.0]),
        ("cispo", [1.2, -1.2, 0.8, -0.8, 1.0], [-1.2, 1.2, -0.8, 0.8, -1.0]),
    ],
)
def test_clipping(loss: str, losses: list[float], slopes: list[float]) -> None:
    datum, current = rl_datum([1.5, 1.5, 0.5, 0.5, 1.0], [1, -1, 1, -1, 1])
    found, slope = token_losses(loss, datum, current, checked_config(loss, {}))
    np.testing.assert_allclose(found, losses, rtol=1e-5)
    np.testing.assert_allclose(slope, slopes, rtol=1e-5)


def by_hand(
    loss: str, current: np.ndarray, inputs: dict[str, np.ndarray], config: dict[str, float]
) -> tuple[list[float], list[float]]:
    """Each token's loss and slope, worked out on paper case by case, in float64."""
    sampled, advantages = (inputs[name].astype(np.float64) for name in ("logprobs", "advantages"))
    differences = current.astype(np.float64) - sampled
    losses, slopes = [], []
    if loss == "gspo":
        marked = [d for d, mark in zip(differences, inputs["sequence_ratio_mask"], strict=True) if mark != 0]
        s = float(np.exp(sum(marked) / len(marked)))
        low, high = config["clip_low_threshold"], config["clip_high_threshold"]
        for a in advantages:
            cut = (s > high and a > 0) or (s < low and a < 0)
            losses.append(-min(max(s, low), high) * a if cut else -s * a)
            slopes.append(0.0 if cut else -s * a)
    else:
        for value, d, a in zip(current.astype(np.float64), differences, advantages, strict=True):
            losses.append(-value * a + config["beta"] * d * d / 2)
            slopes.append(-a + config["beta"] * d)
    return losses, slopes


@pytest.mark.parametrize("loss", ["dro", "gspo"])
@pytest.mark.parametrize("shift", [-2.0, -0.1, 0.0, 0.1, 2.0])  # a sequence ratio below, within and above the clip
@pytest.mark.parametrize("settings", [{}, {"beta": 0.7, "clip_low_threshold": 0.99, "clip_high_threshold": 5.0}])
def test_dro_and_gspo_by_hand(loss: str, shift: float, settings: dict[str, float]) -> None:
    rng = np.random.default_rng(3)
    config = checked_config(loss, {key: value for key, value in settings.items() if key in checked_config(loss, {})})
    current = rng.normal(-1.0, 0.5, 12).astype(np.float32)
    advantages = rng.normal(size=12).astype(np.float32)
    advantages[[0, 5]] = 0  # one token of the prompt, one that was sampled
    inputs = {
        "logprobs": (current - shift + rng.normal(0, 0.02, 12)).astype(np.float32),
        "advantages": advantages,
        "sequence_ratio_mask": np.array([0, 0, *[1] * 8, 0, 1], dtype=np.float32),  # 1 and 10 have advantages, no mark
    }
    inputs["logprobs"][0] = 0.0  # what a prompt's padding holds; gspo's mean must not see it
    losses, slopes = token_losses(loss, TrainDatum(np.arange(12), inputs), current, config)
    expected_losses, expected_slopes = by_hand(loss, current, inputs, config)
    np.testing.assert_allclose(losses, expected_losses, rtol=2e-6, atol=1e-6)
    np.testing.assert_allclose(slopes, expected_slopes, rtol=2e-6, atol=1e-6)
    assert np.any(slopes != 0)


@pytest.mark.parametrize(
    ("k", "kl_coeff", "advantages"),
    [
        (3, 0.5, [0.0, 1.5, -2.0, 0.7]),  # the first target is the prompt's: no advantage, nothing recorded
        (3, 0.5, [0.0, 0.0, 0.0, 0.0]),
        (8, 0.5, [0.0, 1.5, -2.0, 0.7]),  # the whole vocabulary: no remainder
        (3, 0.0, [0.0, 1.5, -2.0, 0.7]),  # plain REINFORCE
    ],
)
def test_stable_reinforce_by_hand(k: int, kl_coeff: float, advantages: list[float]) -> None:
    rng = np.random.default_rng(k)
    p, q = (rng.dirichlet(np.ones(8), 4) for _ in range(2))  # trainer and sampler over 8 tokens, at 4 positions
    recorded = np.argsort(-q, axis=1)[1:, :k].astype(np.int32)
    sampler = SamplerTopK(
        np.arange(1, 4), recorded, np.log(np.take_along_axis(q[1:], recorded, axis=1)).astype(np.float32)
    )
    inputs = {"target_tokens": np.array([0, 1, 7, 3]), "advantages": np.array(advantages, dtype=np.float32)}
    datum = TrainDatum(np.arange(4), inputs, sampler)
    config = checked_config("stable_reinforce", {"kl_coeff": kl_coeff})
    positions, tokens = scored_tokens("stable_reinforce", datum, config)
    assert len(tokens) == (4 if kl_coeff == 0 else 4 + 3 * k)
    losses, slopes = token_losses("stable_reinforce", datum, np.log(p[positions, tokens]).astype(np.float32), config)

    expected = [-a * np.log(p[t, token]) for t, (a, token) in enumerate(zip(advantages, [0, 1, 7, 3], strict=True))]
    gradient = np.zeros((4, 8))  # with respect to the trainer's logits
    for t, (a, token) in enumerate(zip(advantages, [0, 1, 7, 3], strict=True)):
        gradient[t] = a * p[t]
        gradient[t, token] -= a
        if t == 0:
            continue
        inside = recorded[t - 1]
        outside = [v for v in range(8) if v not in inside]
        p_rest, q_rest = p[t, outside].sum(), q[t, outside].sum()
        divergence = sum(q[t, v] * np.log(q[t, v] / p[t, v]) for v in inside)
        gradient[t, inside] += kl_coeff * (p[t, inside] - q[t, inside])
        if outside:
            divergence += q_rest * np.log(q_rest / p_rest)
            gradient[t, outside] += kl_coeff * p[t, outside] * (1 - q_rest / p_rest)
        expected[t] += kl_coeff * divergence
    np.testing.assert_allclose(losses, expected, rtol=1e-5, atol=1e-6)
    found = np.zeros((4, 8))
    for position, token, slope in zip(positions, tokens, slopes, strict=True):
        found[position] -= slope * p[position]
        found[position, token] += slope
    np.testing.assert_allclose(found, gradient, atol=1e-6)


def test_a_vanished_remainder_is_finite() -> None:
    """A trainer that puts everything on the recorded tokens, against a sampler that did not."""
    sampler = SamplerTopK(np.array([0]), np.array([[2]], dtype=np.int32), np.array([[np.log(0.5)]], dtype=np.float32))
    inputs = {"target_tokens": np.array([2]), "advantages": np.zeros(1, dtype=np.float32)}
    config = checked_config("stable_reinforce", {"kl_coeff": 1.0})
    logprobs = np.zeros(2, dtype=np.float32)  # the target, and the same token as the recorded one
    losses, slopes = token_losses("stable_reinforce", TrainDatum(np.arange(1), inputs, sampler), logprobs, config)
    assert losses == pytest.approx([0.5 * np.log(0.5) + 0.5 * np.log(0.5 / 1e-6)])
    assert slopes.tolist() == [0.0, -0.5]


def test_cross_entropy_without_weights_weighs_every_token_with_one() -> None:
    current = np.array([-0.5, -2.0], dtype=np.float32)
    losses, slopes = token_losses("cross_entropy", TrainDatum(np.arange(2), {}), current, {})
    assert losses.tolist() == [0.5, 2.0] and slopes.tolist() == [-1.0, -1.0]


def test_thresholds_are_absolute_ratios() -> None:
    datum, current = rl_datum([3.0], [1.0])
    config = checked_config("ppo", {"clip_high_threshold": 2.0})
    assert config == {"clip_low_threshold": 0.8, "clip_high_threshold": 2.0}
    assert token_losses("ppo", datum, current, config)[0] == pytest.approx([-2.0])


@pytest.mark.parametrize(
    ("loss", "config", "message"),
    [
        ("custom", {}, "unknown loss 'custom'; there are cross_entropy"),
        ("dro", {"kl": 0.1}, "dro has no setting kl; it has beta"),
        ("gspo", {"clip_low_threshold": 1.3}, "is above clip_high_threshold"),
        ("ppo", {"epsilon": 0.2}, "no setting epsilon; it has clip_low_threshold"),
        ("cross_entropy", {"clip_low_threshold": 0.8}, "it has none"),
        ("cispo", {"clip_low_threshold": 2.0}, "is above clip_high_threshold"),
        ("ppo", {"clip_high_threshold": float("nan")}, "must be finite"),
    ],
)
def test_bad_settings_are_refused(loss: str, config: dict[str, float], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        checked_config(loss, config)


def small_adapter() -> Adapter:
    generator = torch.Generator().manual_seed(0)
    return Adapter(LoraShape(2), 0, {"m.lora_A": torch.randn(2, 5, generator=generator), "m.lora_B": torch.zeros(3, 2)})


@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_adam_agrees_with_torch(clip: float) -> None:
    adapter = small_adapter()
    reference = {key: value.clone().requires_grad_() for key, value in adapter.params.items()}
    optimizer = torch.optim.AdamW(reference.values(), lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    generator = torch.Generator().manual_seed(1)
    settings = AdamSettings(0.01, 0.9, 0.95, 1e-8, 0.1, clip)
    for _ in range(5):
        grads = {key: torch.randn(value.shape, generator=generator) for key, value in adapter.params.items()}
        adapter.grads = {key: value.clone() for key, value in grads.items()}
        for key, value in grads.items():
            reference[key].grad = value.clone()
        norm = torch.nn.utils.clip_grad_norm_(reference.values(), clip or float("inf"))
        optimizer.step()
        metrics = adam_step(adapter, settings)
        assert metrics["grad_norm"] == pytest.approx(float(norm), rel=1e-5)
        assert adapter.grads is None
    for key, value in adapter.params.items():
        torch.testing.assert_close(value, reference[key].detach(), rtol=1e-5, atol=1e-6)


def test_adam_refuses_what_it_cannot_do() -> None:
    adapter = small_adapter()
    with pytest.raises(BadRequest, match="no gradients"):
        adam_step(adapter, AdamSettings())
    before = {key: value.clone() for key, value in adapter.params.items()}
    adapter.grads = {key: torch.full_like(value, float("nan")) for key, value in adapter.params.items()}
    with pytest.raises(BadRequest, match="not finite"):
        adam_step(adapter, AdamSettings())
    with pytest.raises(BadRequest, match="beta1"):
        adam_step(adapter, AdamSettings(beta1=1.0))
    with pytest.raises(BadRequest, match="learning_rate"):
        adam_step(adapter, AdamSettings(learning_rate=float("inf")))
    assert adapter.step == 0
    assert all(torch.equal(value, before[key]) for key, value in adapter.params.items())


def test_a_zero_gradient_with_zero_eps_moves_nothing() -> None:
    adapter = small_adapter()
    before = adapter.params["m.lora_A"].clone()
    adapter.grads = {key: torch.zeros_like(value) for key, value in adapter.params.items()}
    adam_step(adapter, AdamSettings(eps=0.0))
    assert torch.equal(adapter.params["m.lora_A"], before)
