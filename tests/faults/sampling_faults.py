"""A gateway in front of a real Tinker server that rewrites what is sampled, as services have been seen to.

| fault   | what passes through                                                                               |
|---------|---------------------------------------------------------------------------------------------------|
| clones  | all samples of a request are its first one: of requests with a seed, or of all (`unseeded_too`)   |
| shift   | log-probabilities go through a function of (array, the request's temperature)                     |
| lossy   | a share of the samples has no log-probabilities, too few, or some that are not numbers            |
| retired | after so many optimizer steps the model is unknown: 404 to what needs it, another one is on offer |

The first `spared` requests for samples pass unharmed. Which samples are lost follows from the request's seed and the
sample's place in it, not from the order of arrival.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from aiohttp import web
from tinker.proto import tinker_public_pb2 as pb

from tests.faults.fault_proxy import Answer, FaultProxy

LOSSES = ("none", "short", "not a number")
Shift = Callable[[np.ndarray, float], np.ndarray]


class SamplingFaults(FaultProxy):
    """Serves `app()`, in front of the Tinker server at `target`; `met` counts what was done to samples, by name."""

    def __init__(
        self,
        target: str,
        *,
        clones: bool = False,
        unseeded_too: bool = False,
        shift: Shift | None = None,
        lossy: float = 0.0,
        retired_after: int | None = None,
        spared: int = 0,
    ) -> None:
        super().__init__(target, rates={})
        self.met: Counter[str] = Counter()
        self.seeds: list[int | None] = []
        self._clones, self._unseeded_too, self._shift = clones, unseeded_too, shift
        self.updates = 0
        self.lossy = lossy
        self._retired_after, self._spared = retired_after, spared
        self._asked: dict[str, dict[str, Any]] = {}
        """What was asked for, by the request's id."""

    @property
    def retired(self) -> bool:
        return self._retired_after is not None and self.updates >= self._retired_after

    async def _forward(self, request: web.Request, body: bytes) -> Answer:
        path = request.path.removeprefix("/api/v1/")
        needs_model = path in ("asample", "create_model", "create_sampling_session", "forward_backward", "optim_step")
        if self.retired and needs_model:
            self.met["retired"] += 1
            text = json.dumps({"detail": "the model was retired"}).encode()
            return Answer(404, {"Content-Type": "application/json"}, text)
        answer = await super()._forward(request, body)
        if path == "asample" and answer.status == 200:
            asked = json.loads(body)
            self._asked[json.loads(answer.body)["request_id"]] = asked
            self.seeds.append(asked["sampling_params"].get("seed"))
        elif path == "optim_step" and answer.status == 200:
            self.updates += 1
        elif path == "get_server_capabilities" and self.retired:
            return replace(answer, body=answer.body.replace(b"data/nano", b"data/newer"))
        elif path == "retrieve_future" and answer.status == 200:
            asked = self._asked.get(json.loads(body)["request_id"])
            if asked is not None and "protobuf" in answer.headers.get("Content-Type", ""):
                return replace(answer, body=self._rewritten(answer.body, asked["sampling_params"]))
        return answer

    def _rewritten(self, body: bytes, params: dict[str, Any]) -> bytes:
        response = pb.SampleResponse()
        response.ParseFromString(body)
        if len(self._asked) <= self._spared:
            return body
        sequences = list(response.sequences)  # a message made of them holds copies
        if self._clones and (self._unseeded_too or params.get("seed") is not None):
            self.met["clones"] += len(sequences) - 1
            sequences = sequences[:1] * len(sequences)
        if self._shift is not None:
            self.met["shift"] += len(sequences)
            for sequence in sequences:
                sequence.logprobs = self._shift(_numbers(sequence.logprobs), params["temperature"]).tobytes()
        rewritten = pb.SampleResponse(sequences=sequences)
        for place, sequence in enumerate(rewritten.sequences):
            self._lose(sequence, f"{params.get('seed')} {place}")
        response.ClearField("sequences")
        response.MergeFrom(rewritten)
        return response.SerializeToString()

    def _lose(self, sequence: "pb.SampledSequence", key: str) -> None:
        draw = int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big")
        if draw >= self.lossy * 2**32:
            return
        loss = LOSSES[draw % len(LOSSES)]
        self.met[loss] += 1
        if loss == "none":
            sequence.ClearField("logprobs")
        elif loss == "short":
            sequence.logprobs = sequence.logprobs[:-4]
        elif loss == "not a number":
            sequence.logprobs = np.full_like(_numbers(sequence.logprobs), np.nan).tobytes()


def _numbers(content: bytes) -> np.ndarray:
    return np.frombuffer(content, dtype=np.float32)
