#!/usr/bin/env python3
"""Makes llama_oracle.h: loss and gradients of a tiny Llama, computed by other people's code.

Not run by the build or the tests. Needs torch and transformers (made with those named in the
header's first lines):   python3 llama_oracle.py > llama_oracle.h

The model is transformers' LlamaForCausalLM in float64. Three of its parts compute in float32
whatever the type of the model; they are replaced, and the whole is then compared with the untouched
float32 model (difference of the loss below 1e-6, asserted):
  - RMSNorm by torch.nn.RMSNorm;
  - the rotary table by the same formula in float64, with the inverse frequencies of the Llama 3
    scaling written out again below;
  - the loss by torch.nn.functional.cross_entropy on float64 logits.
"""
import math
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCAB, T, BATCH = 16, 2, 4, 2, 4, 24, 11, 6, 2
EPS, THETA = 1e-5, 500000.0
FACTOR, LOW, HIGH, ORIGINAL = 8.0, 1.0, 4.0, 8
LR, DECAY, BETA1, BETA2, ADAM_EPS, CLIP, STEPS = 1e-2, 0.1, 0.9, 0.95, 1e-8, 1.0, 3


def names(tied):
    out = ["model.embed_tokens.weight"]
    for layer in range(LAYERS):
        for part in ("input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                     "self_attn.o_proj", "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj",
                     "mlp.down_proj"):
            out.append(f"model.layers.{layer}.{part}.weight")
    out.append("model.norm.weight")
    if not tied:
        out.append("lm_head.weight")
    return out


def value(name, number, count):
    e = torch.arange(count, dtype=torch.float64)
    wave = torch.sin(0.7 * e + 1.3 * number)
    return 1 + 0.1 * wave if "norm" in name else 0.3 * wave


def inverse_frequencies(scaled):
    out = []
    for i in range(HEAD_DIM // 2):
        f = THETA ** (-2 * i / HEAD_DIM)
        if scaled:
            wavelength = 2 * math.pi / f
            smooth = (ORIGINAL / wavelength - LOW) / (HIGH - LOW)
            smooth = min(1.0, max(0.0, smooth))
            f = (1 - smooth) * f / FACTOR + smooth * f
        out.append(f)
    return torch.tensor(out, dtype=torch.float64)


class Rotary64(torch.nn.Module):
    def __init__(self, scaled):
        super().__init__()
        self.inverse = inverse_frequencies(scaled)

    def forward(self, x, position_ids):
        angle = position_ids[:, :, None].to(torch.float64) * self.inverse
        angle = torch.cat((angle, angle), dim=-1)
        return angle.cos().to(x.dtype), angle.sin().to(x.dtype)


def make(tied, scaled, dtype):
    rope = {"rope_type": "default", "rope_theta": THETA}
    if scaled:
        rope = {"rope_type": "llama3", "rope_theta": THETA, "factor": FACTOR,
                "low_freq_factor": LOW, "high_freq_factor": HIGH,
                "original_max_position_embeddings": ORIGINAL}
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=FFN, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM,
        max_position_embeddings=64, rms_norm_eps=EPS, rope_theta=THETA, rope_scaling=rope,
        tie_word_embeddings=tied, attention_bias=False, mlp_bias=False)
    config._attn_implementation = "sdpa"
    model = LlamaForCausalLM(config).to(dtype)
    parameters = dict(model.named_parameters())
    assert sorted(parameters) == sorted(names(tied)), sorted(parameters)
    with torch.no_grad():
        for number, name in enumerate(names(tied)):
            p = parameters[name]
            p.copy_(value(name, number, p.numel()).reshape(p.shape).to(dtype))
    return model


def widen(model, scaled):
    """Replace what computes in float32."""
    def norm(old):
        new = torch.nn.RMSNorm(HIDDEN, eps=EPS, dtype=torch.float64)
        new.weight = old.weight
        return new
    for layer in model.model.layers:
        layer.input_layernorm = norm(layer.input_layernorm)
        layer.post_attention_layernorm = norm(layer.post_attention_layernorm)
    model.model.norm = norm(model.model.norm)
    expected = model.model.rotary_emb.inv_freq.double()
    assert torch.allclose(expected, inverse_frequencies(scaled), rtol=1e-6), expected
    model.model.rotary_emb = Rotary64(scaled)


def window(b):
    return [(7 * b + 3 * t + t * t) % VOCAB for t in range(T + 1)]


def loss_of(model):
    tokens = torch.tensor([window(b) for b in range(BATCH)])
    logits = model(input_ids=tokens[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), tokens[:, 1:].reshape(-1))


def samples(count):
    return [0, (count * 3) // 7, count - 1]


def case(tied, scaled):
    narrow = make(tied, scaled, torch.float32)
    model = make(tied, scaled, torch.float64)
    widen(model, scaled)
    loss = loss_of(model)
    assert abs(loss_of(narrow).item() - loss.item()) < 1e-6
    loss.backward()
    parameters = dict(model.named_parameters())
    tensors = []
    for name in names(tied):
        g = parameters[name].grad.reshape(-1)
        assert g.dtype == torch.float64
        picked = ", ".join(f"{{{i}, {g[i].item():.17g}}}" for i in samples(g.numel()))
        tensors.append(f'         {{"{name}", {g.numel()}, {g.norm().item():.17g}, {{{picked}}}}},')

    matrices = [parameters[n] for n in names(tied) if "norm" not in n]
    norms = [parameters[n] for n in names(tied) if "norm" in n]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": DECAY}, {"params": norms, "weight_decay": 0.0}],
        lr=LR, betas=(BETA1, BETA2), eps=ADAM_EPS, foreach=False)
    total, after = [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_of(model).backward()
        total.append(math.sqrt(sum((parameters[n].grad ** 2).sum().item() for n in names(tied))))
        factor = min(1.0, CLIP / total[-1])
        for p in matrices + norms:
            p.grad *= factor
        optimizer.step()
        after.append(loss_of(model).item())
    print(f"    {{{'true' if tied else 'false'}, {'true' if scaled else 'false'}, {loss.item():.17g},")
    print("     {" + ", ".join(f"{x:.17g}" for x in total) + "},")
    print("     {" + ", ".join(f"{x:.17g}" for x in after) + "},")
    print(f"     {len(tensors)},")
    print("     {")
    print("\n".join(tensors))
    print("     }},")


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    most = len(names(False))
    print(f"""/* llama_oracle.h - loss, gradients and three AdamW steps of a tiny Llama, by an independent
 * implementation. Made by llama_oracle.py with torch {torch.__version__} and transformers {transformers.__version__} in
 * float64; do not edit.
 *
 * The model: hidden {HIDDEN}, {LAYERS} layers, {HEADS} heads, {KV_HEADS} key-value heads, head_dim {HEAD_DIM}, ffn {FFN}, vocabulary {VOCAB},
 * norm_eps {EPS:g}, rope_theta {THETA:.0f}, rope in the half-split form (dimension i with i + head_dim / 2).
 * Rope scaling where on: factor {FACTOR:g}, low {LOW:g}, high {HIGH:g}, original context {ORIGINAL}.
 *
 * Element e (row-major, shape (out, in)) of tensor number n, n being its place in tensors[]:
 *   0.3 * sin(0.7 * e + 1.3 * n), and for the norms' weights 1 + 0.1 * sin(0.7 * e + 1.3 * n).
 * The batch: {BATCH} samples of {T} + 1 tokens, token t of sample b is (7 * b + 3 * t + t * t) % {VOCAB}; inputs are
 * the first {T}, targets the last {T}; the loss is the mean over all {BATCH * T} targets.
 * The steps: AdamW, lr {LR:g}, betas {BETA1:g} and {BETA2:g}, eps {ADAM_EPS:g}, decay {DECAY:g} on all matrices (embedding and head
 * too) and 0 on norms, gradients times min(1, {CLIP:g} / norm), always the same batch. */
#ifndef GTRAIN_TEST_LLAMA_ORACLE_H
#define GTRAIN_TEST_LLAMA_ORACLE_H

#include <stdbool.h>

enum {{
    ORACLE_HIDDEN = {HIDDEN},
    ORACLE_LAYERS = {LAYERS},
    ORACLE_HEADS = {HEADS},
    ORACLE_KV_HEADS = {KV_HEADS},
    ORACLE_HEAD_DIM = {HEAD_DIM},
    ORACLE_FFN = {FFN},
    ORACLE_VOCAB = {VOCAB},
    ORACLE_SEQUENCE = {T},
    ORACLE_BATCH = {BATCH},
    ORACLE_STEPS = {STEPS},
    ORACLE_SAMPLES = 3,
    ORACLE_MAX_TENSORS = {most},
}};

struct oracle_tensor {{
    const char *name;
    int count;        /* elements */
    double grad_norm; /* L2 */
    struct {{
        int element;
        double grad;
    }} samples[ORACLE_SAMPLES];
}};

struct oracle_case {{
    bool tied, rope_scaled;
    double loss;                     /* before any step */
    double grad_norms[ORACLE_STEPS]; /* of all tensors together, at each step, before clipping */
    double losses[ORACLE_STEPS];     /* after each step */
    int n_tensors;
    struct oracle_tensor tensors[ORACLE_MAX_TENSORS];
}};

/* clang-format off */
static const struct oracle_case ORACLE_CASES[] = {{""")
    for tied in (False, True):
        for scaled in (False, True):
            case(tied, scaled)
    print("""};
/* clang-format on */

#endif""")


main()
