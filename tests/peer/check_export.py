#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that transformers reads the folders that this library writes and computes the same from them.

Needs torch, transformers (4.x or 5.x) and safetensors. Not part of CTest, which needs no Python packages:

    ninja -C build export_model
    python tests/peer/check_export.py build/tests/export_model
"""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file

DATA = Path(__file__).resolve().parent.parent / "data" / "models"
LLAMA = {"type": "llama", "vocab_size": 97, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3,
         "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 64, "initializer_range": 0.2}
GPT2 = {"type": "gpt2", "vocab_size": 97, "n_positions": 40, "n_embd": 48, "n_layer": 3, "n_head": 4,
        "initializer_range": 0.2}
CASES = {
    "gpt2-tiny": str(DATA / "gpt2-tiny"),
    "gpt2-tiny-rand": str(DATA / "gpt2-tiny-rand"),
    "llama-tiny": str(DATA / "llama-tiny"),
    "gpt2 new": GPT2,
    "gpt2 untied, other options": GPT2 | {
        "tie_word_embeddings": False, "n_inner": 100, "activation_function": "relu", "layer_norm_epsilon": 1e-3,
        "scale_attn_by_inverse_layer_idx": True},
    "gpt2 unscaled, exact gelu": GPT2 | {"scale_attn_weights": False, "activation_function": "gelu"},
    "llama new": LLAMA,
    "llama tied, biases, own head size": LLAMA | {
        "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "head_dim": 16, "rope_theta": 5e5,
        "hidden_act": "gelu_pytorch_tanh"},
    "llama linear rope": LLAMA | {"rope_scaling": {"type": "linear", "factor": 4.0}},
    "llama 3.1 rope": LLAMA | {"rope_parameters": {
        "rope_type": "llama3", "rope_theta": 1000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32}},
}


def check(name, source, dtype, program):
    with tempfile.TemporaryDirectory() as scratch:
        text = source if isinstance(source, str) else json.dumps(source)
        subprocess.run([program, text, scratch, dtype], check=True)
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            scratch, torch_dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
        problems = {k: v for k, v in info.items() if v}
        model.eval()
        ours = load_file(Path(scratch) / "io.safetensors")
        with torch.no_grad():
            theirs = model(ours["input_ids"], labels=ours["input_ids"])
            greedy = model.generate(ours["input_ids"][:1, :4], max_new_tokens=12, min_new_tokens=12, do_sample=False,
                                    eos_token_id=None, pad_token_id=0)[0, 4:]
        off = (theirs.logits - ours["logits"]).abs().max().item()
        loss_off = abs(theirs.loss.item() - ours["loss"].item())
        stored = next(iter(load_file(Path(scratch) / "model.safetensors").values())).dtype
        good = (not problems and off < 2e-5 and loss_off < 1e-5 and greedy.tolist() == ours["greedy"].tolist()
                and stored == {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype])
        print(f"{'ok  ' if good else 'FAIL'} {name}, {dtype}: logits off by {off:.1e}, loss by {loss_off:.1e}"
              + (f", {problems}" if problems else ""))
        return good


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    results = [check(name, source, dtype, sys.argv[1])
               for name, source in CASES.items() for dtype in ("fp32", "bf16", "fp16")]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
