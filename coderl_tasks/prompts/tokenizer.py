"""A model's tokenizer and the renderer that fits it, from a local folder or the hub."""

import json
import logging
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from coderl_tasks.errors import ConfigError
from coderl_tasks.paths import local_model_folder
from coderl_tasks.prompts.chat_template import ChatTemplateRenderer
from coderl_tasks.prompts.renderers import QWEN3_RENDERERS, THINK_OPEN, THINKING_OF, Renderer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)


@lru_cache(maxsize=4)
def load_tokenizer(model_name: str) -> "PreTrainedTokenizerBase":
    """The tokenizer of a local model folder, or else of a model on the hub. Raises ConfigError if neither has it."""
    from transformers import AutoTokenizer  # seconds to import, and only needed here

    folder = local_model_folder(model_name)
    source = str(folder or model_name)
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError) as error:
        where = f"the folder {folder}" if folder else "the Hugging Face hub (no local folder of that name)"
        first_line = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ConfigError(f"Cannot load the tokenizer of {model_name!r} from {where}: {first_line}") from error
    return tokenizer


def model_renderer(model_name: str, renderer_name: str | None = None, thinking: bool | None = None) -> Renderer:
    """The renderer for a model: `renderer_name`, or the recommended one; with thinking on, off, or as it is made for.
    Raises ConfigError as `load_tokenizer` and `get_renderer` do."""
    tokenizer = load_tokenizer(model_name)
    name = renderer_name or recommended_renderer(model_name)
    if renderer_name is None and name == "qwen3" and thinking is False:
        name = "qwen3_disable_thinking"
    # Asked for only where it is needed: for a model on the hub this is a download.
    end_tokens = generation_end_tokens(model_name) if name == ChatTemplateRenderer.name else ()
    return get_renderer(name, tokenizer, thinking=thinking, end_tokens=end_tokens)


def get_renderer(
    name: str, tokenizer: "PreTrainedTokenizerBase", *, thinking: bool | None = None, end_tokens: Sequence[int] = ()
) -> Renderer:
    """The renderer called `name` (qwen3 | qwen3_disable_thinking | qwen3_instruct | chat_template) on `tokenizer`.

    `thinking` and `end_tokens` are as in `ChatTemplateRenderer`; the other renderers each have their own. Raises
    ValueError "Unknown renderer" for another name, and ConfigError if the tokenizer lacks what the renderer needs or
    `thinking` contradicts the renderer.
    """
    if name == ChatTemplateRenderer.name:
        return ChatTemplateRenderer(tokenizer, thinking=thinking, end_tokens=end_tokens)
    if name not in QWEN3_RENDERERS:
        known = ", ".join((*QWEN3_RENDERERS, ChatTemplateRenderer.name))
        raise ValueError(f"Unknown renderer: {name!r}. Known: {known}")
    if thinking is not None and THINKING_OF.get(name) is not thinking:
        raise ConfigError(
            f"thinking={'on' if thinking else 'off'} and the renderer {name} contradict each other: leave thinking "
            "out, or set renderer_name=chat_template if the model's template has a switch for it"
        )
    return QWEN3_RENDERERS[name](tokenizer)


def recommended_renderer(model_name: str) -> str:
    """The renderer for a model, by its name alone; for a local folder of another name, by its configuration.
    Instruct-2507 models get `qwen3_instruct`, other Qwen3 models `qwen3`; a local Qwen3 folder whose chat template
    knows no think block, as the bundled nano model, gets `qwen3_instruct`. Every other model gets `chat_template`."""
    # The name comes first, and needs no download: `coderl doctor` tells the renderer of every model on offer.
    base_name = model_name.rstrip("/").rsplit("/", maxsplit=1)[-1].lower()
    if base_name.startswith("qwen3-") and "base" not in base_name:
        return "qwen3_instruct" if "instruct" in base_name else "qwen3"
    folder = local_model_folder(model_name)
    if folder is not None and json.loads((folder / "config.json").read_text("utf-8")).get("model_type") in QWEN3_TYPES:
        template = getattr(load_tokenizer(model_name), "chat_template", None)
        return "qwen3" if isinstance(template, str) and THINK_OPEN in template else "qwen3_instruct"
    return ChatTemplateRenderer.name


QWEN3_TYPES = ("qwen3", "qwen3_moe")
"""`model_type` of the models that the Qwen3 renderers are for; later ones (qwen3_5) have other formats."""


def generation_end_tokens(model_name: str) -> list[int]:
    """`eos_token_id`s in a model's generation_config.json, if there is one. Raises ConfigError for a damaged one."""
    from transformers.utils import cached_file

    folder = local_model_folder(model_name)
    try:
        file = cached_file(str(folder or model_name), "generation_config.json")
    except OSError as error:
        # No such file and no way to the hub are the same error here, so a model without the file must not fail.
        said = "no generation_config.json of %s, so its template says what ends an answer: %s"
        logger.warning(said, model_name, str(error).strip().partition("\n")[0])
        return []
    try:
        ids = json.loads(Path(str(file)).read_text(encoding="utf-8")).get("eos_token_id")
        return [] if ids is None else [int(token) for token in (ids if isinstance(ids, list) else [ids])]
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"the generation_config.json of {model_name!r} is damaged: {error}") from error
