"""Between the SDK's messages and the engine's plain types: protobuf training requests in, protobuf answers out."""

import secrets
from collections.abc import Iterable

import numpy as np
from google.protobuf.message import DecodeError
from tinker import types
from tinker.proto import tinker_public_pb2 as pb

from local_servers.tinker.engine.losses import LOSSES
from local_servers.tinker.engine_types import LossOutput, SampleResult, SampleSpec, TrainDatum
from local_servers.tinker.provenance import RECORDED_TOP_K, Provenance, Span, check_tiling
from local_servers.tinker.refusal import BadRequest, about_datum

MASK_TOKEN = 0
MASK_LOGPROB = -99999.0  # what the SDK reads as "nothing here" in a top-k matrix
_DTYPES: dict[int, type[np.number]] = {pb.DTYPE_FLOAT32: np.float32, pb.DTYPE_INT64: np.int64, pb.DTYPE_INT32: np.int32}


def parse_forward_backward(body: bytes) -> "pb.ForwardBackwardRequest":
    """The request message; BadRequest if the bytes are not one."""
    message = pb.ForwardBackwardRequest()
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise BadRequest(f"the body is not a ForwardBackwardRequest in protobuf: {error}") from error
    return message


def loss_of(message: "pb.ForwardBackwardRequest") -> str:
    """The loss function asked for; BadRequest for one that is not offered."""
    if message.loss_fn not in LOSSES:
        raise BadRequest(f"loss {message.loss_fn!r} is not offered here: {', '.join(LOSSES)}")
    return str(message.loss_fn)


def loss_config_of(message: "pb.ForwardBackwardRequest") -> dict[str, float]:
    """The loss function's numbers; BadRequest for a text value, which no offered loss takes. The SDK sends every
    number twice: `loss_fn_config_v2` is what counts."""
    config = {str(key): float(value) for key, value in message.loss_fn_config.items()}
    for key, value in message.loss_fn_config_v2.items():
        if value.WhichOneof("value") != "number":
            raise BadRequest(f"loss_fn_config {key!r} must be a number")
        config[str(key)] = float(value.number)
    return config


def train_datums(message: "pb.ForwardBackwardRequest") -> list[tuple[TrainDatum, Provenance | None]]:
    """The request's training sequences, and where their tokens come from (None where it does not say). BadRequest names
    the datum and what is wrong with it."""
    if not message.data:
        raise BadRequest("the request has no data")
    datums = []
    for number, datum in enumerate(message.data):
        with about_datum(number):
            inputs = {str(name): _array(str(name), tensor) for name, tensor in datum.loss_fn_inputs.items()}
            parsed, provenance = TrainDatum(_input_tokens(datum.model_input), inputs), None
            if datum.model_input_spans or datum.loss_fn_input_spans:
                provenance = Provenance(
                    [_span(span) for span in datum.model_input_spans],
                    [_span(span) for span in datum.loss_fn_input_spans],
                )
                check_tiling(parsed, provenance)
            datums.append((parsed, provenance))
    return datums


def _span(message: "pb.ProvenanceSpan") -> Span:
    kind = message.WhichOneof("span")
    if kind is None:
        raise BadRequest("provenance: a span is neither of a prompt's tokens nor of sampled ones")
    named = message.sampled_tokens if kind == "sampled_tokens" else message.prompt_tokens
    if not named.sequence_id or named.offset < 0 or named.length < 0:
        raise BadRequest("provenance: a span needs a sequence_id, and an offset and a length that are not negative")
    return Span(kind == "sampled_tokens", str(named.sequence_id), int(named.offset), int(named.length))


def _input_tokens(chunks: Iterable[pb.Chunk]) -> np.ndarray:
    parts = []
    for chunk in chunks:
        kind = chunk.WhichOneof("chunk")
        if kind != "encoded_text":
            raise BadRequest(f"model_input has a chunk of {kind or 'no kind'}; only tokens are supported")
        parts.append(_numbers("model_input", chunk.encoded_text.tokens, np.int32))
    return np.concatenate(parts).astype(np.int64) if parts else np.zeros(0, dtype=np.int64)


def _array(name: str, tensor: "pb.Tensor") -> np.ndarray:
    if tensor.WhichOneof("encoding") == "sparse_csr" or len(tensor.shape) > 1:
        raise BadRequest(f"{name} has shape {list(tensor.shape)}; only one number per position is supported")
    dtype = _DTYPES.get(tensor.dtype)
    if dtype is None:
        raise BadRequest(f"{name} has a dtype that is neither float32 nor int64")
    array = _numbers(name, tensor.dense, dtype)
    if tensor.shape and tensor.shape[0] != array.size:
        raise BadRequest(f"{name} declares {tensor.shape[0]} values and carries {array.size}")
    return array.astype(np.int64 if array.dtype.kind == "i" else np.float32)


def _numbers(name: str, content: bytes, number: type[np.number]) -> np.ndarray:
    dtype = np.dtype(number)
    if len(content) % dtype.itemsize:
        raise BadRequest(f"{name} has {len(content)} bytes, which are no whole {dtype} values")
    return np.frombuffer(content, dtype=dtype)


def forward_backward_output(output: LossOutput) -> bytes:
    """The answer to forward and forward_backward: per datum `logprobs` and `elementwise_loss`, and the metrics."""
    message = pb.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord", metrics=output.metrics)
    record = message.loss_fn_outputs.add()
    record.type_tag = "ArrayRecord"
    record.num_datums = len(output.logprobs)
    for name, arrays in (("logprobs", output.logprobs), ("elementwise_loss", output.elementwise_loss)):
        flat = [np.ascontiguousarray(array, dtype=np.float32) for array in arrays]
        field = record.fields[name]
        field.data = b"".join(array.tobytes() for array in flat)
        field.offsets = np.cumsum([0, *(array.nbytes for array in flat)], dtype=np.int64).tobytes()
        field.dtype = pb.DTYPE_FLOAT32
    return message.SerializeToString()


def sample_spec(request: types.SampleRequest, eos_tokens: list[int], context_length: int) -> SampleSpec:
    """The engine's form of a sampling request; BadRequest for what is not offered. `stop` of None stops at the model's
    end-of-sequence tokens; anything else stops at exactly what it lists."""
    for field in ("topk_sample_logprobs", "prompt_alt_tokens_k"):
        if getattr(request, field):
            raise BadRequest(f"{field} is not offered here")
    if request.target_prompt_logprobs is not None:
        raise BadRequest("target_prompt_logprobs is not offered here")
    try:
        prompt = list(request.prompt.to_ints())
    except ValueError as error:
        raise BadRequest("the prompt has chunks that are not tokens; only tokens are supported") from error
    last_n = request.prompt_logprobs_last_n
    if last_n is not None and not (request.prompt_logprobs and 1 <= last_n <= len(prompt) - 1):
        most = f"from 1 to {len(prompt) - 1}" if len(prompt) > 1 else "none, as the prompt has one token or none"
        raise BadRequest(f"prompt_logprobs_last_n is {last_n}: {most}, with prompt_logprobs")
    params = request.sampling_params
    stop_tokens, stop_strings = _stops(params.stop, eos_tokens)
    return SampleSpec(
        prompt=prompt,
        num_samples=request.num_samples,
        max_tokens=params.max_tokens if params.max_tokens is not None else max(1, context_length - len(prompt)),
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        seed=params.seed if params.seed is not None else secrets.randbits(63),
        stop_tokens=stop_tokens,
        stop_strings=stop_strings,
        prompt_logprobs=bool(request.prompt_logprobs),
        topk_prompt_logprobs=request.topk_prompt_logprobs,
        record_top_k=RECORDED_TOP_K if request.record_stability_info else 0,
    )


def _stops(stop: object, eos_tokens: list[int]) -> tuple[list[int], list[str]]:
    if stop is None:
        return list(eos_tokens), []
    if isinstance(stop, str):
        return [], [stop]
    assert isinstance(stop, (list, tuple))
    tokens = [item for item in stop if isinstance(item, int)]
    strings = [item for item in stop if isinstance(item, str)]
    if tokens and strings:
        raise BadRequest("stop mixes strings and token ids; give one or the other")
    if "" in strings:
        raise BadRequest("stop has an empty string, which would stop before the first token")
    return tokens, strings


def sample_response(result: SampleResult, last_n: int | None = None) -> bytes:
    """The answer to a sampling request; with `last_n` only the last that many prompt tokens keep their scores."""
    message = pb.SampleResponse()
    for sequence in result.sequences:
        message.sequences.add(
            stop_reason=pb.STOP_REASON_STOP if sequence.stop_reason == "stop" else pb.STOP_REASON_LENGTH,
            tokens=np.asarray(sequence.tokens, dtype=np.int32).tobytes(),
            logprobs=np.asarray(sequence.logprobs, dtype=np.float32).tobytes(),
        )
    if result.prompt_logprobs is not None:
        scores = np.array([np.nan if value is None else value for value in result.prompt_logprobs], dtype=np.float32)
        if last_n is not None:
            scores[:-last_n] = np.nan
        message.prompt_logprobs = scores.tobytes()
    if result.topk_prompt_logprobs is not None:
        rows = list(result.topk_prompt_logprobs)
        if last_n is not None:
            rows[:-last_n] = [None] * (len(rows) - last_n)
        width = max((len(row) for row in rows if row is not None), default=0)
        tokens = np.full((len(rows), width), MASK_TOKEN, dtype=np.int32)
        scores = np.full((len(rows), width), MASK_LOGPROB, dtype=np.float32)
        for number, row in enumerate(rows):
            for column, (token, score) in enumerate(row or ()):
                tokens[number, column], scores[number, column] = token, score
        topk = pb.TopkLogprobs(token_ids=tokens.tobytes(), logprobs=scores.tobytes(), k=width, length=len(rows))
        message.topk_prompt_logprobs.CopyFrom(topk)
    return message.SerializeToString()
