#!/usr/bin/env python3
"""Prints the log-probabilities in test_hf.c, computed by transformers in float32.

Not run by the build or the tests. Made with transformers 5.24.0, torch 2.15.0.
"""
import math
import torch
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(vocab_size=13, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
                     num_attention_heads=4, num_key_value_heads=2, head_dim=6,
                     max_position_embeddings=32, rms_norm_eps=1e-5, tie_word_embeddings=False,
                     rope_theta=1000.0, attn_implementation="eager")
config.rope_parameters = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0,
                          "high_freq_factor": 4.0, "original_max_position_embeddings": 8,
                          "rope_theta": 1000.0}
model = LlamaForCausalLM(config).eval()
parameters = dict(model.named_parameters())
in_layer = ["input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
            "self_attn.o_proj", "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj",
            "mlp.down_proj"]
names = ["model.embed_tokens.weight"]
names += [f"model.layers.{layer}.{name}.weight" for layer in range(2) for name in in_layer]
names += ["model.norm.weight", "lm_head.weight"]
assert sorted(names) == sorted(parameters)
for t, name in enumerate(names):
    p = parameters[name]
    one = 1 if "norm" in name else 0
    values = [0.4 * math.sin(1.7 * t + 0.9 * i + 0.001 * i * i) + one for i in range(p.numel())]
    p.data.copy_(torch.tensor(values, dtype=torch.float64).float().reshape(p.shape))
tokens = [(5 * i * i + 3 * i + 1) % 13 for i in range(20)]
with torch.no_grad():
    logits = model(torch.tensor([tokens])).logits[0].double()
scores = torch.log_softmax(logits, -1)
print(", ".join("%.7f" % scores[i, tokens[i + 1]].item() for i in range(19)))
