"""What a request must satisfy before any work is done on it. Every check raises BadRequest with what is wrong."""

import numpy as np

from local_servers.tinker.engine.losses import LOSS_INPUTS, OPTIONAL_INPUTS
from local_servers.tinker.engine_types import LOSS_NAMES, LossName, SampleSpec, TrainDatum
from local_servers.tinker.refusal import BadRequest

MAX_SAMPLES = 4096
MAX_TOP_K_LOGPROBS = 1024
COLDEST, HOTTEST = 0.01, 100.0
"""Temperatures that differ from greedy and from uniform sampling; a colder one overflows."""


def check_tokens(tokens: np.ndarray, vocab_size: int, what: str) -> None:
    """Token ids must be integers of the vocabulary."""
    if tokens.dtype.kind not in "iu":
        raise BadRequest(f"{what} must be integers, not {tokens.dtype}")
    outside = tokens[(tokens < 0) | (tokens >= vocab_size)]
    if len(outside):
        raise BadRequest(f"{what} has token id {outside[0]}, outside the vocabulary of {vocab_size}")


def check_datum(datum: TrainDatum, loss: LossName, vocab_size: int, context_length: int) -> None:
    """A datum must be non-empty, fit the context, and have every input of its loss, finite and of its length."""
    if loss not in LOSS_NAMES:
        raise BadRequest(f"unknown loss {loss!r}; there are {', '.join(LOSS_NAMES)}")
    tokens = datum.tokens
    if tokens.ndim != 1 or len(tokens) == 0:
        raise BadRequest("a datum's model_input must be a non-empty sequence of tokens")
    check_tokens(tokens, vocab_size, "model_input")
    if len(tokens) > context_length:
        raise BadRequest(f"model_input has {len(tokens)} tokens, the model's context is {context_length}")
    for name in ("target_tokens", *LOSS_INPUTS[loss]):
        values = datum.loss_inputs.get(name)
        if values is None and name in OPTIONAL_INPUTS:
            continue
        if values is None:
            raise BadRequest(f"{loss} needs loss_fn_inputs[{name!r}]")
        if values.shape != tokens.shape:
            raise BadRequest(f"{name} has shape {values.shape}, model_input has {len(tokens)} tokens")
        if name == "target_tokens":
            check_tokens(values, vocab_size, name)
        elif not np.isfinite(values).all():
            raise BadRequest(
                f"{name} has a value that is not finite, at position {int(np.argmin(np.isfinite(values)))}"
            )
    if loss == "stable_reinforce":
        if datum.sampler is None:
            raise BadRequest("stable_reinforce needs the sampler's recorded distributions")
        check_tokens(datum.sampler.tokens, vocab_size, "the recorded distribution")
    if loss == "gspo" and not datum.loss_inputs["sequence_ratio_mask"].any():
        raise BadRequest("sequence_ratio_mask marks no token: it has to be 1 on those that were sampled")


def check_sample(spec: SampleSpec, vocab_size: int, context_length: int, *, has_tokenizer: bool) -> None:
    """A sampling request must have a prompt that leaves room in the context and settings within their ranges."""
    if not spec.prompt:
        raise BadRequest("the prompt is empty")
    check_tokens(np.asarray(spec.prompt), vocab_size, "the prompt")
    scores_only = spec.prompt_logprobs or spec.topk_prompt_logprobs > 0
    if len(spec.prompt) > context_length - (0 if scores_only else 1):
        raise BadRequest(
            f"the prompt has {len(spec.prompt)} tokens and leaves no room in the model's context of {context_length}"
        )
    if not 1 <= spec.num_samples <= MAX_SAMPLES:
        raise BadRequest(f"num_samples must be at least 1 and at most {MAX_SAMPLES}, not {spec.num_samples}")
    if spec.max_tokens < 1:
        raise BadRequest(f"max_tokens must be at least 1, not {spec.max_tokens}")
    if spec.temperature != 0 and not COLDEST <= spec.temperature <= HOTTEST:
        raise BadRequest(
            f"temperature must be 0 (greedy), or from {COLDEST:g} to {HOTTEST:g}, not {spec.temperature}: dividing by "
            "less overflows"
        )
    if not 0 < spec.top_p <= 1:
        raise BadRequest(f"top_p must be in (0, 1], not {spec.top_p}")
    if spec.top_k < -1:
        raise BadRequest(f"top_k must be positive, or -1 or 0 for no limit, not {spec.top_k}")
    if not 0 <= spec.topk_prompt_logprobs <= MAX_TOP_K_LOGPROBS:
        raise BadRequest(
            f"topk_prompt_logprobs must not be negative, nor more than {MAX_TOP_K_LOGPROBS}, "
            f"but is {spec.topk_prompt_logprobs}"
        )
    if spec.stop_tokens:
        check_tokens(np.asarray(spec.stop_tokens), vocab_size, "stop")
    if spec.stop_strings and not has_tokenizer:
        raise BadRequest("stop strings need a tokenizer, and the model's folder has none: use stop token ids")
