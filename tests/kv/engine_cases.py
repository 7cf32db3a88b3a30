"""Small models of every kind that vLLM runs on the CPU, with the settings to start them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.kv.engine import EngineOptions
from harness.kv.plan import plan
from harness.kv.plan_types import Plan, PlanOptions

MIB = 2**20


@dataclass(frozen=True)
class Case:
    """One small model and the settings it is started with."""

    name: str
    config: dict[str, Any]
    max_model_len: int = 2048
    kv_memory_bytes: int = 64 * MIB
    max_num_batched_tokens: int | None = None
    block_size: int | None = None
    kv_dtype: str = "auto"
    #: further flags of vLLM that mean what our options mean
    flags: tuple[str, ...] = field(default_factory=tuple)
    hybrid_manager: bool | None = None

    def ours(self) -> Plan:
        """Our figures for the same settings."""
        engine = EngineOptions(
            device="cpu",
            max_model_len=self.max_model_len,
            max_num_batched_tokens=self.max_num_batched_tokens,
            block_size=self.block_size,
            hybrid_manager=self.hybrid_manager,
        )
        options = PlanOptions(
            engine=engine, kv_memory_bytes=self.kv_memory_bytes, kv_dtype=self.kv_dtype
        )
        return plan(self.config, options, self.name)


def decoder(architecture: str, model_type: str, **more: Any) -> dict[str, Any]:
    """A small decoder's config."""
    base: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": model_type,
        "num_hidden_layers": 4,
        "hidden_size": 256,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "intermediate_size": 512,
        "vocab_size": 512,
        "max_position_embeddings": 8192,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "torch_dtype": "bfloat16",
    }
    return base | more


def gemma3(layers: int, pattern: int, **more: Any) -> dict[str, Any]:
    """A text-only Gemma 3 whose every ``pattern``-th layer is full."""
    types = ["sliding_attention" if (i + 1) % pattern else "full_attention" for i in range(layers)]
    sizes: dict[str, Any] = {
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "query_pre_attn_scalar": 64,
        "sliding_window": 256,
        "layer_types": types,
    }
    return decoder("Gemma3ForCausalLM", "gemma3_text", **sizes) | more


GPT2: dict[str, Any] = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "n_layer": 3,
    "n_embd": 256,
    "n_head": 4,
    "n_positions": 1024,
    "vocab_size": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
DEEPSEEK = decoder(
    "DeepseekV2ForCausalLM",
    "deepseek_v2",
    num_attention_heads=4,
    num_key_value_heads=4,
    head_dim=64,
    kv_lora_rank=512,
    q_lora_rank=None,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
    n_routed_experts=2,
    first_k_dense_replace=4,
)

GEMMA_3N = gemma3(
    15,
    5,
    architectures=["Gemma3nForCausalLM"],
    model_type="gemma3n_text",
    num_kv_shared_layers=5,
    intermediate_size=[512] * 15,
    hidden_size_per_layer_input=32,
    vocab_size_per_layer_input=512,
    laurel_rank=16,
    activation_sparsity_pattern=[0.0] * 15,
    altup_num_inputs=2,
)
LLAMA_4 = decoder(
    "Llama4ForCausalLM",
    "llama4_text",
    intermediate_size=256,
    intermediate_size_mlp=512,
    num_local_experts=2,
    num_experts_per_tok=1,
    attention_chunk_size=1024,
    interleave_moe_layer_step=2,
)
QWEN3_NEXT = decoder(
    "Qwen3NextForCausalLM",
    "qwen3_next",
    num_hidden_layers=8,
    num_attention_heads=4,
    head_dim=64,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=64,
    linear_value_head_dim=64,
    linear_conv_kernel_dim=4,
    num_experts=2,
    num_experts_per_tok=1,
    decoder_sparse_step=1,
    moe_intermediate_size=128,
    shared_expert_intermediate_size=128,
)
GRANITE_4 = decoder(
    "GraniteMoeHybridForCausalLM",
    "granitemoehybrid",
    num_hidden_layers=6,
    num_attention_heads=4,
    head_dim=64,
    layer_types=["mamba", "mamba", "attention"] * 2,
    mamba_n_heads=8,
    mamba_n_groups=1,
    mamba_d_state=64,
    mamba_d_head=64,
    mamba_d_conv=4,
    mamba_expand=2,
    num_local_experts=0,
    num_experts_per_tok=0,
    shared_intermediate_size=512,
)


def latent_block() -> int:
    """The block of vLLM's latent kernel on this CPU: 128 with AMX, else 16."""
    cpu = Path("/proc/cpuinfo")
    return 128 if cpu.is_file() and "amx_tile" in cpu.read_text() else 16


CASES = (
    Case("GQA: 8 heads, 2 KV heads", decoder("LlamaForCausalLM", "llama")),
    Case("MQA: 8 heads, 1 KV head", decoder("LlamaForCausalLM", "llama", num_key_value_heads=1)),
    Case("MHA: GPT-2 names, no dtype stated", GPT2, max_model_len=1024),
    Case(
        "explicit head_dim (hidden / heads = 32)",
        decoder("Qwen3ForCausalLM", "qwen3", head_dim=128, num_attention_heads=8),
    ),
    Case("hybrid: Gemma 3, 2 full + 10 sliding", gemma3(12, 6), max_model_len=4096),
    Case(
        "hybrid, 512 batched tokens",
        gemma3(12, 6),
        max_model_len=4096,
        max_num_batched_tokens=512,
    ),
    Case("hybrid, odd: 2 full + 5 sliding", gemma3(7, 3), max_model_len=4096),
    Case("hybrid, nearly equal: 5 full + 6 sliding", gemma3(11, 2), max_model_len=4096),
    Case(
        "hybrid without its manager",
        gemma3(12, 6),
        max_model_len=4096,
        flags=("--disable-hybrid-kv-cache-manager",),
        hybrid_manager=False,
    ),
    Case(
        "sliding only: Mistral, window 256",
        decoder("MistralForCausalLM", "mistral", sliding_window=256),
        max_model_len=4096,
        max_num_batched_tokens=1024,
    ),
    Case("shared: Gemma 3n, 10 own + 5 shared", GEMMA_3N, max_model_len=4096),
    Case("chunked: Llama 4, 1 full + 3 chunked", LLAMA_4, max_model_len=4096),
    Case("states: Qwen3-Next, 2 full + 6 linear", QWEN3_NEXT, max_model_len=4096),
    Case("states: Granite 4, 2 full + 4 Mamba-2", GRANITE_4, max_model_len=4096),
    Case(
        "latent: DeepSeek V2",
        DEEPSEEK,
        max_model_len=1024,
        block_size=latent_block(),
    ),
)
