"""Mixtures of experts: their tiny models, whose routers choose clearly, the names that files have for them, and the
adapters that peft makes of stacks of experts.

transformers keeps the weights of all experts of a layer in two parameters, `mlp.experts.gate_up_proj` and
`mlp.experts.down_proj`, of gemma4 `experts.gate_up_proj` and `experts.down_proj` beside the dense `mlp`. Files have a tensor for each expert and linear; those of gpt_oss have the two as they are, which
there are [experts, inputs, outputs], with biases and with gate and up in turn. Released files of qwen3_5_moe have the
two as well, as those of gemma4, and those that transformers saves have a tensor for each.
"""

import pathlib
import tempfile

import torch
from safetensors.torch import load_file
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

import hybrids
from file_names import unused_weights

STACKS = ("experts.gate_up_proj", "experts.down_proj")
DENSE = tuple(f"mlp.{of}{linear}_proj.weight" for of in ("", "shared_experts.", "shared_expert.")
              for linear in ("gate", "up", "down"))
ATTENTION = ["k_proj", "o_proj", "q_proj", "v_proj"]
OF_PARAMETERS = ("gate_proj", "up_proj", "down_proj")  # linears that peft adapts as parameters beside stacks
# What files call the feed-forward layer, its router aside, and an expert's gate, up and down.
NAMES_IN_FILES = {"qwen3_moe": ("mlp", ("gate_proj", "up_proj", "down_proj")),
                  "glm4_moe": ("mlp", ("gate_proj", "up_proj", "down_proj")),
                  "qwen3_next": ("mlp", ("gate_proj", "up_proj", "down_proj")),
                  "qwen3_5_moe_text": ("mlp", ("gate_proj", "up_proj", "down_proj")),
                  "mixtral": ("block_sparse_moe", ("w1", "w3", "w2"))}
RANKS = {"qwen3_moe_mixed": 3, "gpt_oss": 3}  # neither the number of experts nor a power of two
# The expert of the first layer with experts that no token goes to: the first, the last, one between.
UNCHOSEN = {"qwen3_moe": 0, "qwen3_moe_mixed": 4, "glm4_moe": 3, "glm4_moe_groups": 8, "mixtral": 2, "gpt_oss": 1,
            "gpt_oss_tied": 4, "gemma4_moe_tied": 2, "gemma4_moe_multimodal_tied": 4, **hybrids.UNCHOSEN}
# Adapters of some linears: of one stack alone, whose tensors have the same names whichever it is, and as peft
# changes the usual names of linears, with the double rank on gate and up. "Targets" of linears, of parameters. An
# expert that all tokens go to has no adapter by those names.
SOME = {"qwen3_moe": (["q_proj", "v_proj"], ["mlp.experts.gate_up_proj"]),
        "qwen3_moe_mixed": (["q_proj", "gate_proj", "up_proj", "down_proj"], []),
        "glm4_moe": (["k_proj", "gate_proj", "up_proj", "down_proj"], []),
        "glm4_moe_groups": (["o_proj"], ["mlp.experts.gate_up_proj", "mlp.shared_experts.down_proj.weight"]),
        "mixtral": ([], ["mlp.experts.down_proj"]),
        "gpt_oss": (["q_proj", "v_proj"], ["mlp.experts.down_proj"]),
        "gpt_oss_tied": ([], ["mlp.experts.gate_up_proj"]),
        "gemma4_moe_tied": (["q_proj", "k_proj"], ["experts.down_proj", "mlp.up_proj.weight"]), **hybrids.SOME}
# Seeds with which every choice of a case is clear: in rows and documents, with adapters, in each step.
SEEDS = {"qwen3_moe": "qwen3_moe 41", "qwen3_moe_mixed": "qwen3_moe_mixed 6", "glm4_moe": "glm4_moe 17",
         "glm4_moe_groups": "glm4_moe_groups 227", "mixtral": "mixtral 5", "gpt_oss": "gpt_oss 13",
         "gpt_oss_tied": "gpt_oss_tied 4", "gemma4_moe_tied": "gemma4_moe_tied 0",
         "gemma4_moe_multimodal_tied": "gemma4_moe_multimodal_tied 35", **hybrids.SEEDS}
LEAST_LEAD = 1e-3
# gpt_oss's gates and ups are clamped at this. Biases of theirs are so large that a good share is (weights as large would
# make gradients of rounding), and weights of down so much smaller. At the limit the gradient jumps: no value may be so near that another order of sums decides.
LIMIT, GATE_UP_SCALE, BIAS_SCALE, DOWN_SCALE = 7.0, 1.5, 17.0, 0.05
LEAST_CLAMPED, LEAST_DISTANCE = 0.1, 1e-5
SCORE_SCALE = 2.0
# With the first value of each embedding so large a router can refuse an expert to all tokens.
FIRST_VALUE, REFUSAL = 2.0, -6.0


def cases(shape):
    """The cases, of these sizes where they have none of their own."""
    glm4 = {"architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", **shape, "moe_intermediate_size": 24,
            "rope_scaling": None, "tie_word_embeddings": False}
    gpt_oss = {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", **shape}
    qwen3 = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", **shape}
    return {
        "qwen3_moe": {
            **qwen3, "num_hidden_layers": 4, "rope_theta": 1000000.0, "num_experts": 4,
            "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True,
            "decoder_sparse_step": 1, "mlp_only_layers": [], "tie_word_embeddings": False},
        # As transformers 5 writes the number of experts and rotary settings.
        "qwen3_moe_mixed": {
            **qwen3, "num_hidden_layers": 3, "head_dim": 16, "attention_bias": True, "num_local_experts": 5,
            "num_experts_per_tok": 3, "moe_intermediate_size": 24, "norm_topk_prob": False,
            "decoder_sparse_step": 1, "mlp_only_layers": [1], "tie_word_embeddings": True,
            "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}},
        # Its files hold a layer beyond the last, for the prediction of several tokens.
        "glm4_moe": {
            **glm4, "num_hidden_layers": 4, "head_dim": 8, "attention_bias": True, "use_qk_norm": True,
            "first_k_dense_replace": 1, "n_routed_experts": 6, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
            "n_shared_experts": 1, "norm_topk_prob": True, "routed_scaling_factor": 1.7,
            "partial_rotary_factor": 0.5, "rope_theta": 1000000.0, "num_nextn_predict_layers": 1},
        "glm4_moe_groups": {
            **glm4, "num_hidden_layers": 3, "head_dim": 16, "attention_bias": False, "use_qk_norm": False,
            "first_k_dense_replace": 0, "n_routed_experts": 9, "num_experts_per_tok": 3, "n_group": 3, "topk_group": 2,
            "n_shared_experts": 2, "norm_topk_prob": False, "routed_scaling_factor": 0.8,
            "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default", "partial_rotary_factor": 0.25},
            "num_nextn_predict_layers": 0},
        "mixtral": {
            "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", **shape,
            "intermediate_size": 24, "num_local_experts": 4, "num_experts_per_tok": 2,
            "sliding_window": 8, "rope_theta": 10000.0, "tie_word_embeddings": False},
        # With all keys of the released files.
        "gpt_oss": {
            **gpt_oss, "num_hidden_layers": 4, "head_dim": 8, "intermediate_size": 24, "num_local_experts": 4,
            "num_experts_per_tok": 2, "experts_per_token": 2, "attention_bias": True, "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"] * 2, "swiglu_limit": 7.0,
            "max_position_embeddings": 8192, "initial_context_length": 256, "rope_theta": 150000.0,
            "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                             "truncate": False, "original_max_position_embeddings": 256},
            "router_aux_loss_coef": 0.9, "output_router_logits": False, "tie_word_embeddings": False},
        "gpt_oss_tied": {
            **gpt_oss, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6, "head_dim": 16,
            "max_position_embeddings": 128, "intermediate_size": 40, "num_local_experts": 5, "num_experts_per_tok": 3,
            "sliding_window": 8, "layer_types": ["full_attention", "full_attention", "sliding_attention"],
            "attention_bias": True,
            "rope_parameters": {"rope_theta": 10000.0, "rope_type": "yarn", "factor": 4.0, "truncate": False,
                                "original_max_position_embeddings": 32},
            "tie_word_embeddings": True},
    }


def is_stack(name):
    return name.endswith(STACKS)


def fan_in_dimension(name, model):
    """The dimension of a matrix or stack along which its inputs are."""
    return (1 if has_transposed_stacks(model) else 2) if is_stack(name) else 1


def has_transposed_stacks(model):
    return model.config.model_type == "gpt_oss"


def is_router(module):
    return type(module).__name__.lower().endswith(("topkrouter", "gemma4textrouter"))


def weight_of(router):
    return router.proj.weight if hasattr(router, "proj") else router.weight


def first_router(model):
    return next(module for module in model.modules() if is_router(module))


def prepare(name, model):
    """Routers that choose clearly, and one that leaves an expert without any token."""
    if name not in UNCHOSEN:
        return
    model.get_input_embeddings().weight[:, 0] = FIRST_VALUE
    for module in model.modules():
        if is_router(module):
            weight_of(module).mul_(SCORE_SCALE)
            if hasattr(module, "scale"):  # which makes up for the constant that scores are multiplied by
                module.scale.copy_((module.scale / module.scalar_root_size).to(torch.bfloat16))
        if isinstance(module, GptOssExperts):
            let_clamps_act(module)
    router = first_router(model)
    weight_of(router)[UNCHOSEN[name], 0] = REFUSAL
    if hasattr(router, "bias"):
        router.bias[UNCHOSEN[name]] = REFUSAL


def let_clamps_act(module):
    for parameter, scale in ((module.gate_up_proj, GATE_UP_SCALE), (module.gate_up_proj_bias, BIAS_SCALE),
                             (module.down_proj, DOWN_SCALE)):
        parameter.copy_((parameter * scale).to(torch.bfloat16))


def corrected(router, scores):
    """What a router that corrects sigmoids chooses by: without groups, and in the best groups."""
    by = scores.detach().sigmoid() + router.e_score_correction_bias
    groups = by.unflatten(1, (router.num_group, -1))
    sums = groups.topk(2, dim=-1).values.sum(-1)
    best = torch.zeros_like(sums).scatter(1, sums.topk(router.topk_group).indices, 1.0).bool()
    return by, sums, groups.masked_fill(~best.unsqueeze(-1), float("-inf")).flatten(1)


def differ(choice, other):
    """Whether any token has other experts."""
    return not torch.equal(choice.sort().values, other.sort().values)


class Choices:
    """Looks at all routers: by how much the last chosen score leads the next, and who is chosen; and at all gates and
    ups that are clamped: how many they are, and how near to the limit a value is."""

    def __init__(self):
        self.lead = self.distance = float("inf")
        self.chosen = {}
        self.by_correction = self.by_groups = False  # whether they changed a choice
        self.values = self.clamped = 0

    def __enter__(self):
        self.handle = torch.nn.modules.module.register_module_forward_hook(self.look)
        self.apply_gate = GptOssExperts._apply_gate
        GptOssExperts._apply_gate = self.clamp
        return self

    def __exit__(self, *_):
        self.handle.remove()
        GptOssExperts._apply_gate = self.apply_gate

    @property
    def clamp(self):
        def look(module, gate_up):
            values = gate_up.detach()
            size = torch.cat((values[..., ::2], values[..., 1::2].abs()))
            self.values += size.numel()
            self.clamped += (size > LIMIT).sum().item()
            self.distance = min(self.distance, (size - LIMIT).abs().min().item())
            return self.apply_gate(module, gate_up)
        return look

    def look(self, module, _, output):
        if not is_router(module):
            return
        scores, _, chosen = output
        if hasattr(module, "proj"):
            scores = scores.log()  # probabilities
        if hasattr(module, "e_score_correction_bias"):
            by, sums, scores_in_groups = corrected(module, scores)
            self.by_correction |= differ(by.topk(module.top_k).indices, scores.topk(module.top_k).indices)
            self.by_groups |= differ(by.topk(module.top_k).indices, chosen)
            # A score moves its sigmoid by a quarter of its own move at most.
            if module.topk_group < module.num_group:
                self.see_lead(2 * sums, module.topk_group)
            scores = 4 * scores_in_groups
        self.see_lead(scores.detach(), chosen.shape[1])
        self.chosen[module] = self.chosen.get(module, set()) | set(chosen.reshape(-1).tolist())

    def see_lead(self, scores, count):
        best = scores.topk(count + 1).values
        self.lead = min(self.lead, (best[:, -2] - best[:, -1]).min().item())


def check_choices(name, model, choices):
    """That the forwards seen chose clearly, and left the expert out that they should."""
    if name not in UNCHOSEN:
        return
    check_clear(name, choices)
    router = first_router(model)
    expected = set(range(len(weight_of(router)))) - {UNCHOSEN[name]}
    if choices.chosen[router] != expected:
        raise AssertionError(f"{name}: the first router chose {choices.chosen[router]}, not {expected}")
    if hasattr(router, "e_score_correction_bias"):
        if not choices.by_correction or choices.by_groups != (router.num_group > 1):
            raise AssertionError(f"{name}: choices changed by corrections {choices.by_correction}, by groups "
                                 f"{choices.by_groups}")


def type_in_files(name):
    return torch.float32 if name.endswith("e_score_correction_bias") else torch.bfloat16


def check_clear(name, choices):
    """That no other order of sums would have chosen or clamped otherwise, and that clamps act."""
    if choices.lead < LEAST_LEAD:
        raise AssertionError(f"{name}: a choice of experts leads by {choices.lead:.1e} only: take another seed")
    if choices.distance < LEAST_DISTANCE:
        raise AssertionError(f"{name}: a value is {choices.distance:.1e} from the limit: take another seed")
    if choices.clamped < LEAST_CLAMPED * choices.values:
        raise AssertionError(f"{name}: of {choices.values} gates and ups but {choices.clamped} are clamped")


def in_files(weights, model):
    """The tensors of a checkpoint, of a model's parameters by their names at run time."""
    if model.config.model_type not in NAMES_IN_FILES:
        return weights
    layer, (gate, up, down) = NAMES_IN_FILES[model.config.model_type]
    tensors = {}
    for name, weight in weights.items():
        block, _, end = name.partition(".mlp.")
        if not is_stack(name):
            tensors[f"{block}.{layer}.gate.weight" if end == "gate.weight" else name] = weight
            continue
        for expert, matrix in enumerate(weight):
            parts = {down: matrix} if end.endswith("down_proj") else dict(zip((gate, up), matrix.chunk(2)))
            for linear, part in parts.items():
                tensors[f"{block}.{layer}.experts.{expert}.{linear}.weight"] = part.contiguous()
    return tensors


def check_files(name, model, folder):
    """That transformers writes the same tensors, but for stacks that it splits."""
    if name not in UNCHOSEN or name in hybrids.IN_STACKS:
        return
    with tempfile.TemporaryDirectory() as saved:
        for parameter in model.parameters():  # constants stay in float32
            parameter.data = parameter.data.to(torch.bfloat16)
        model.save_pretrained(saved)
        theirs = load_file(pathlib.Path(saved) / "model.safetensors")
    unused = unused_weights(model)
    ours = {n: t for n, t in load_file(folder / "model.safetensors").items() if n not in unused}
    if theirs.keys() != ours.keys() or not all(torch.equal(theirs[n], ours[n].to(theirs[n].dtype)) for n in ours):
        raise AssertionError(f"{name}: transformers saves other tensors: {sorted(theirs.keys() ^ ours.keys())}")


def parameters_of(model):
    """What peft's `target_parameters` name beside attention's linears, or nothing. Dense layers between those with
    experts, and experts of all tokens, are among them, for peft takes gate_proj, up_proj and down_proj of
    `target_modules` for the experts'."""
    names = [n for n, _ in model.named_parameters()]
    if not any(is_stack(n) for n in names):
        return None
    ends = {n.partition(".layers.")[2].partition(".")[2] for n in names}
    return sorted(e for e in ends if is_stack(e) or e in DENSE)


def quantise(model, dequantized):
    """Replaces each stack by what it stands for in 4 bits, all experts of it quantised as one, in the order
    [experts, outputs, inputs] whatever the files' is."""
    for name, parameter in model.named_parameters():
        if is_stack(name):
            stack = parameter.transpose(1, 2) if has_transposed_stacks(model) else parameter
            value = dequantized(stack.contiguous())
            parameter.copy_(value.transpose(1, 2) if has_transposed_stacks(model) else value)
