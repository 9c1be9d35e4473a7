"""Recorded sequences, and what training data claim about where their tokens come from.

A sampling request with `record_stability_info` leaves of each sequence its prompt, its tokens, and at every position
the sampler's `RECORDED_TOP_K` likeliest tokens. A datum of stable_reinforce names the sequences behind its tokens, by
spans that tile its input and its targets (`Datum.with_provenance`), and gets their distributions here. Of other losses'
spans only the tiling is checked, as clients attach them whatever the loss.

A record is in memory alone. It lives for a day after it was sampled or last trained on, and no longer than its session.
Where records take more than `MAX_BYTES`, the ones unused for longest go first.
"""

import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from local_servers.tinker.engine_types import SampledSequence, SamplerTopK, TrainDatum
from local_servers.tinker.refusal import BadRequest

RECORDED_TOP_K = 32  # tokens kept per position, 256 bytes together; those beyond count as one (`engine.losses`)
LIFE_S = 24 * 3600.0
MAX_BYTES = 512 * 2**20


@dataclass(frozen=True)
class Span:
    """A run of `length` positions that are those from `offset` on of a sequence's sampled tokens, or of its prompt."""

    sampled: bool
    sequence_id: str
    offset: int
    length: int

    @property
    def kind(self) -> str:
        return "sampled" if self.sampled else "prompt"


@dataclass(frozen=True)
class Provenance:
    """The spans that tile a datum's model_input and its target_tokens."""

    model_input: Sequence[Span]
    targets: Sequence[Span]


@dataclass(frozen=True)
class RecordedSequence:
    """One sampled sequence: `prompt` and `tokens` int32, and the sampler's distribution at each of the tokens."""

    session_id: str
    prompt: np.ndarray
    tokens: np.ndarray
    top_k: SamplerTopK | None
    used: float

    @property
    def nbytes(self) -> int:
        parts = [] if self.top_k is None else [self.top_k.positions, self.top_k.tokens, self.top_k.logprobs]
        return sum(part.nbytes for part in (self.prompt, self.tokens, *parts))


def check_tiling(datum: TrainDatum, provenance: Provenance) -> None:
    """Raises BadRequest if the spans do not cover the model input and the targets, each position once."""
    targets = datum.loss_inputs.get("target_tokens")
    for name, spans, tokens in (
        ("model_input", provenance.model_input, datum.tokens),
        ("loss_fn_inputs", provenance.targets, datum.tokens if targets is None else targets),
    ):
        covered = sum(span.length for span in spans)
        if covered != len(tokens):
            raise BadRequest(f"provenance: the {name} spans cover {covered} positions of {len(tokens)}")


class RecordedSequences:
    """The records of one server process."""

    def __init__(self) -> None:
        self._records: OrderedDict[str, RecordedSequence] = OrderedDict()  # the one unused for longest first
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._records)

    def add(
        self, session_id: str, prompt: Sequence[int], sequences: Sequence[SampledSequence], sequence_ids: Sequence[str]
    ) -> None:
        shared = np.asarray(prompt, dtype=np.int32)
        for sequence_id, sequence in zip(sequence_ids, sequences, strict=True):
            tokens = np.asarray(sequence.tokens, dtype=np.int32)
            record = RecordedSequence(session_id, shared, tokens, sequence.top_k, time.monotonic())
            self._records[sequence_id] = record
            self.nbytes += record.nbytes
        self._evict()

    def end_session(self, session_id: str) -> None:
        for sequence_id in [key for key, record in self._records.items() if record.session_id == session_id]:
            self._forget(sequence_id)

    def with_sampler(self, session_id: str, datum: TrainDatum, provenance: Provenance | None, loss: str) -> TrainDatum:
        """Returns the datum with the sampler's recorded top-k distributions at its sampled targets, which `loss` reads.
        `provenance` says from which sampled sequence each span of the datum's tokens comes. Raises BadRequest if there
        is none, if it claims what was not recorded, and for an advantage on a target that was not sampled."""
        if provenance is None:
            raise BadRequest(f"{loss} needs provenance: name the sampled sequences with Datum.with_provenance")
        targets, advantages = (datum.loss_inputs.get(name) for name in ("target_tokens", "advantages"))
        if targets is None or advantages is None or not targets.shape == advantages.shape == datum.tokens.shape:
            raise BadRequest(f"{loss} needs target_tokens and advantages, one for each token of model_input")
        self._evict()
        found = []
        for where, span, place, of_targets in _placed(provenance):
            record = self._claimed(session_id, where, span)
            recorded = record.tokens if span.sampled else record.prompt
            end = span.offset + span.length
            if end > len(recorded):
                has = f"{len(recorded)} {span.kind} tokens"
                raise BadRequest(f"{where} ends at {end}, sequence {span.sequence_id!r} has {has}")
            if of_targets and not span.sampled:  # targets are not compared with the prompt: clients fill in zeros
                if advantages[place].any():
                    position = place.start + int(np.argmax(advantages[place] != 0))
                    raise BadRequest(f"{where}: position {position} has a non-zero advantage and was not sampled")
                continue
            tokens = (targets if of_targets else datum.tokens)[place]
            different = np.flatnonzero(tokens != recorded[span.offset : end])
            if len(different):
                at = int(different[0])
                raise BadRequest(
                    f"{where}: token {tokens[at]} is not number {span.offset + at} of the {span.kind} tokens of "
                    f"sequence {span.sequence_id!r}, which is {recorded[span.offset + at]}"
                )
            if of_targets and span.length > 0:
                assert record.top_k is not None
                of = slice(span.offset, end)
                found.append((np.arange(place.start, place.stop), record.top_k.tokens[of], record.top_k.logprobs[of]))
        if not found:
            raise BadRequest("provenance: no target is a sampled token")
        return replace(datum, sampler=SamplerTopK(*(np.concatenate(part) for part in zip(*found, strict=True))))

    def _claimed(self, session_id: str, where: str, span: Span) -> RecordedSequence:
        """The record that the span names, whose day begins anew."""
        record = self._records.get(span.sequence_id)
        if record is None or record.session_id != session_id:
            raise BadRequest(
                f"{where}: sequence {span.sequence_id!r} is not recorded in this session: sample with "
                "record_stability_info=True in the session that trains, within a day"
            )
        self._records[span.sequence_id] = replace(record, used=time.monotonic())
        self._records.move_to_end(span.sequence_id)
        return record

    def _evict(self) -> None:
        oldest_kept = time.monotonic() - LIFE_S
        while self._records:
            sequence_id, record = next(iter(self._records.items()))
            if record.used > oldest_kept and self.nbytes <= MAX_BYTES:
                return
            self._forget(sequence_id)

    def _forget(self, sequence_id: str) -> None:
        self.nbytes -= self._records.pop(sequence_id).nbytes


def _placed(provenance: Provenance) -> Iterator[tuple[str, Span, slice, bool]]:
    """Each span with the words for it, the positions it covers, and whether these are of the targets."""
    for name, spans in (("model_input", provenance.model_input), ("loss_fn_inputs", provenance.targets)):
        start = 0
        for number, span in enumerate(spans):
            place = slice(start, start + span.length)
            yield f"provenance, span {number} of {name}", span, place, name == "loss_fn_inputs"
            start = place.stop
