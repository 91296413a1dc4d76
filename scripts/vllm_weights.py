"""Write the demo model as a Hugging Face folder, for a vLLM on the CPU: ``make vllm-cpu``.

    python scripts/vllm_weights.py MODEL.gguf FOLDER

Needs gguf, numpy, safetensors, tokenizers and torch, all of which vLLM brings but gguf. The weights
are dequantised to float32 (vLLM's bfloat16 gave wrong text on a virtual machine with AMX).
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

CONTROL = 3
"""GGUF's token type of control tokens."""

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def rotary_halves(weight: np.ndarray, heads: int) -> np.ndarray:
    """Put a q or k projection's rows in the order of halves; GGUF has them in pairs."""
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.transpose(0, 2, 1, 3).reshape(rows, columns)


def write_weights(reader: GGUFReader, folder: Path, heads: dict[str, int]) -> None:
    """Write ``model.safetensors``."""
    tensors = {}
    for tensor in reader.tensors:
        weight = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        block = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", tensor.name)
        short = block[2] if block else tensor.name.removesuffix(".weight")
        if short in heads:
            weight = rotary_halves(weight, heads[short])
        layer = f"model.layers.{block[1]}." if block else ""
        tensors[f"{layer}{NAMES[short]}.weight"] = torch.from_numpy(np.ascontiguousarray(weight))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def write_tokenizer(values: dict[str, object], folder: Path) -> None:
    """Write ``tokenizer.json`` and its configuration.

    Not what transformers makes of this GGUF, which gets digits beside spaces wrong.
    """
    names = ("tokens", "token_type", "merges")
    tokens, types, merges = (values[f"tokenizer.ggml.{name}"] for name in names)
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: number for number, token in enumerate(tokens)},
            merges=[tuple(merge.split(" ", 1)) for merge in merges],
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in control])
    tokenizer.save(str(folder / "tokenizer.json"))
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": tokens[values["tokenizer.ggml.eos_token_id"]],
        "chat_template": values["tokenizer.chat_template"],
        "clean_up_tokenization_spaces": False,
        "model_max_length": values["llama.context_length"],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(described))


def write_config(values: dict[str, object], folder: Path) -> None:
    """Write ``config.json``."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": values["llama.embedding_length"],
        "intermediate_size": values["llama.feed_forward_length"],
        "num_hidden_layers": values["llama.block_count"],
        "num_attention_heads": values["llama.attention.head_count"],
        "num_key_value_heads": values["llama.attention.head_count_kv"],
        "rms_norm_eps": values["llama.attention.layer_norm_rms_epsilon"],
        "rope_theta": values["llama.rope.freq_base"],
        "max_position_embeddings": values["llama.context_length"],
        "vocab_size": len(values["tokenizer.ggml.tokens"]),
        "tie_word_embeddings": True,
        "bos_token_id": values["tokenizer.ggml.bos_token_id"],
        "eos_token_id": values["tokenizer.ggml.eos_token_id"],
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))


def main(source: str, target: str) -> None:
    """Convert ``source`` into the folder ``target``."""
    folder = Path(target)
    folder.mkdir(parents=True, exist_ok=True)
    reader = GGUFReader(source)
    values = {name: field.contents() for name, field in reader.fields.items()}
    heads = {
        "attn_q": int(values["llama.attention.head_count"]),
        "attn_k": int(values["llama.attention.head_count_kv"]),
    }
    write_config(values, folder)
    write_tokenizer(values, folder)
    write_weights(reader, folder, heads)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
