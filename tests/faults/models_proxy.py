"""An HTTP proxy that makes a real Tinker server one that offers other models, which come and go."""

import json
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from tests.faults.fault_proxy import Answer, FaultProxy


class ModelsProxy(FaultProxy):
    """Serves `app()`, in front of the server at `target`: it offers `models` instead of the server's own.

    `models` maps the names offered to those of the server's own models that stand behind them; change it and others are
    offered from then on. `asked` counts how often the offer was asked for. `stated` is what else is said of each.
    """

    def __init__(self, target: str, models: Mapping[str, str], **stated: Any) -> None:
        super().__init__(target, rates={})
        self.models = dict(models)
        self.asked = 0
        self._stated = {"max_context_length": 256, "trainable": True, "sampleable": True, **stated}

    async def _forward(self, request: web.Request, body: bytes) -> Answer:
        if request.path == "/api/v1/get_server_capabilities":
            self.asked += 1
            offer = [{"model_name": name, **self._stated} for name in self.models]
            return Answer(200, {"Content-Type": "application/json"}, json.dumps({"supported_models": offer}).encode())
        for name, own in self.models.items():
            body = body.replace(json.dumps(name).encode(), json.dumps(own).encode())
        return await super()._forward(request, body)
