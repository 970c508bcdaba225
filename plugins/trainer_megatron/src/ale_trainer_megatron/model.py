"""Builds megatron-core's `GPTModel` for a model folder of one of the shapes in `SHAPES`.

The layers are those of megatron-core without Transformer Engine, with our norm and attention (`modules.py`); everything
that is fused only on CUDA is off. Rotary frequencies are those that transformers computes from the folder.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer import ModuleSpec, TransformerConfig
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
from torch import Tensor
from torch.nn.functional import silu
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ale.errors import ConfigError
from ale_trainer_megatron.layout import Layout
from ale_trainer_megatron.modules import PackedAttention, RMSNorm

if not hasattr(moe_utils, "te_general_gemm"):  # 0.16.1 compares it with None, also without Transformer Engine
    moe_utils.te_general_gemm = None

SHAPES = ("qwen2", "qwen3", "qwen3_moe", "llama")
"""The values of `model_type` in a folder's config.json that this trainer can hold."""


class Policy(GPTModel):  # type: ignore[misc]
    """A model whose last stage returns hidden states: only positions before a token with loss need logits."""

    def _postprocess(self, hidden_states: Tensor, *_args: Any, **_others: Any) -> Tensor:
        return hidden_states

    @property
    def output_weight(self) -> Tensor:
        """The output layer's rows of this rank. [V, H]"""
        shared = self.share_embeddings_and_output_weights
        weight: Tensor = self.shared_embedding_or_output_weight() if shared else self.output_layer.weight
        return weight


def check_shape(config: Any, layout: Layout) -> None:
    """Refuse a model that this trainer or this layout cannot hold. Raises `ConfigError`."""
    if config.model_type not in SHAPES:
        raise ConfigError(
            f"The trainer 'megatron' trains models of the types {', '.join(SHAPES)}, and this one is of the type "
            f"'{config.model_type}'; take the trainer 'torch' for it."
        )
    if config.hidden_act != "silu" or getattr(config, "mlp_bias", False):
        raise ConfigError(
            "The trainer 'megatron' trains models with SiLU and without biases in the MLP; take the trainer 'torch'."
        )
    if config.model_type != "qwen2" and config.attention_bias:
        raise ConfigError(
            f"The trainer 'megatron' trains no {config.model_type} with attention_bias; take the trainer 'torch'."
        )
    for what, number in (("attention heads", config.num_attention_heads), ("KV heads", config.num_key_value_heads)):
        if number % layout.tensor:
            raise ConfigError(
                f"trainer.tensor_parallel is {layout.tensor}, which does not divide the model's {number} {what}."
            )
    if has_experts(config) and layout.tensor > 1 and not layout.sequence_parallel:
        raise ConfigError(
            "The model has experts, which megatron-core shares among ranks with sequence parallelism only: set "
            "trainer.sequence_parallel to true, or trainer.tensor_parallel to 1."
        )
    if config.num_hidden_layers % layout.pipeline:
        raise ConfigError(
            f"trainer.pipeline_parallel is {layout.pipeline}, which does not divide the model's "
            f"{config.num_hidden_layers} layers."
        )


def padded_vocabulary(config: Any, layout: Layout) -> int:
    """Return the number of rows of the embeddings, rounded up so that every rank has the same number."""
    return -(-int(config.vocab_size) // layout.tensor) * layout.tensor


def is_moe(config: Any, layer: int) -> bool:
    """Whether a layer has experts."""
    if config.model_type != "qwen3_moe" or layer in (config.mlp_only_layers or ()):
        return False
    return bool(config.num_experts > 0 and (layer + 1) % config.decoder_sparse_step == 0)


def has_experts(config: Any) -> bool:
    """Whether any layer has experts."""
    return any(is_moe(config, layer) for layer in range(config.num_hidden_layers))


def build_model(
    config: Any, layout: Layout, device: torch.device, dtype: torch.dtype, *, recompute: bool = False
) -> Policy:
    """Make this rank's part of the model, with no weights in it yet. Raises `ConfigError`."""
    check_shape(config, layout)
    megatron = _megatron_config(config, layout, device, dtype, recompute=recompute)
    first = get_transformer_layer_offset(megatron)
    layers = [_layer_spec(config, first + i) for i in range(get_num_layers_to_build(megatron))]
    model = Policy(
        config=megatron,
        transformer_layer_spec=TransformerBlockSubmodules(layer_specs=layers, layer_norm=RMSNorm),
        vocab_size=padded_vocabulary(config, layout),
        max_sequence_length=config.max_position_embeddings,
        pre_process=layout.stage == 0,
        post_process=layout.is_last,
        share_embeddings_and_output_weights=config.tie_word_embeddings,
        position_embedding_type="rope",
    )
    model.rotary_pos_emb.inv_freq = _rotary_frequencies(config, device)
    model.to(device)
    return model


def _megatron_config(
    config: Any, layout: Layout, device: torch.device, dtype: torch.dtype, *, recompute: bool
) -> TransformerConfig:
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    moe: dict[str, Any] = {}
    if has_experts(config):
        moe = {
            "num_moe_experts": config.num_experts,
            "moe_layer_freq": [int(is_moe(config, layer)) for layer in range(config.num_hidden_layers)],
            "moe_ffn_hidden_size": config.moe_intermediate_size,
            "moe_router_topk": config.num_experts_per_tok,
            # Probabilities of all experts are kept as they are, or made to sum to 1 over those that were chosen.
            "moe_router_pre_softmax": not config.norm_topk_prob,
            "moe_router_load_balancing_type": "none",
            "moe_permute_fusion": False,
        }
    found = TransformerConfig(
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        ffn_hidden_size=config.intermediate_size,
        num_attention_heads=heads,
        num_query_groups=config.num_key_value_heads,
        kv_channels=width,
        qk_layernorm=config.model_type.startswith("qwen3"),
        add_qkv_bias=config.model_type == "qwen2",
        add_bias_linear=False,
        gated_linear_unit=True,
        activation_func=silu,
        normalization="RMSNorm",
        layernorm_epsilon=config.rms_norm_eps,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        softmax_scale=width**-0.5,
        params_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        pipeline_dtype=dtype,
        tensor_model_parallel_size=layout.tensor,
        pipeline_model_parallel_size=layout.pipeline,
        sequence_parallel=layout.sequence_parallel,
        variable_seq_lengths=True,  # micro-batches have as many tokens as fit
        moe_token_dispatcher_type="alltoall",  # the one for such, and asked for without experts too
        calculate_per_token_loss=True,  # losses and gradients are sums; the algorithm divides
        batch_p2p_comm=False,
        use_cpu_initialization=device.type == "cpu",
        perform_initialization=False,
        gradient_accumulation_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        apply_rope_fusion=False,
        persist_layer_norm=False,
        recompute_granularity="full" if recompute else None,
        recompute_method="uniform" if recompute else None,
        recompute_num_layers=1 if recompute else None,
        **moe,
    )
    # Of each layer; ours, read by `PackedAttention`.
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    found.sliding_windows = [config.sliding_window if kind == "sliding_attention" else None for kind in kinds]
    return found


def _layer_spec(config: Any, layer: int) -> ModuleSpec:
    spec = get_gpt_layer_local_spec(
        num_experts=config.num_experts if is_moe(config, layer) else None,
        qk_layernorm=config.model_type.startswith("qwen3"),
        normalization="RMSNorm",
    )
    spec.submodules.input_layernorm = spec.submodules.pre_mlp_layernorm = RMSNorm
    attention = spec.submodules.self_attention.submodules
    attention.core_attention = PackedAttention
    if config.model_type.startswith("qwen3"):
        attention.q_layernorm = attention.k_layernorm = RMSNorm
    return spec


def _rotary_frequencies(config: Any, device: torch.device) -> Tensor:
    """Return the frequencies of rotary positions, as transformers has them. [width / 2]"""
    parameters = config.rope_parameters
    kind = parameters.get("rope_type", "default")
    if kind == "default":
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        steps = torch.arange(0, width, 2, dtype=torch.int64).float()
        frequencies: Tensor = 1.0 / (parameters["rope_theta"] ** (steps / width))
        return frequencies.to(device)
    if kind not in ("linear", "llama3"):  # the others scale scores too, or change with the length
        raise ConfigError(
            f"The trainer 'megatron' knows rotary positions of the types default, linear and llama3, and this model's "
            f"are of the type '{kind}'; take the trainer 'torch'."
        )
    found: Tensor = ROPE_INIT_FUNCTIONS[kind](config, device)[0]
    return found
