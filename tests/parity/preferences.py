"""Losses over preferences: what TRL's trainers compute with a tiny model of families.py.

The trainers' own methods run on batches made here: loss, metrics and gradients of one step, of all weights
and of an adapter whose B is not zero. tests/parity/README.md lists the files. sigmoid_norm, which this TRL
does not have, is its sigmoid on means over tokens, written out.
"""

import collections
import types

import peft
import torch
from safetensors.torch import save_file
from trl.experimental.cpo import CPOTrainer
from trl.experimental.kto import KTOTrainer
from trl.experimental.orpo import ORPOTrainer
from trl.trainer.dpo_trainer import DPOTrainer

import families

MODEL = "qwen2_sliding_untied"
VOCABULARY, PAIRS = 128, 3
# Name: (trainer, attributes). KTO's rows are the pairs' answers, marked.
CASES = {
    "dpo_sigmoid": ("dpo", {"loss_types": ["sigmoid"]}),
    "dpo_robust": ("dpo", {"loss_types": ["robust"], "label_smoothing": 0.1}),
    "dpo_hinge": ("dpo", {"loss_types": ["hinge"]}),
    "dpo_ipo": ("dpo", {"loss_types": ["ipo"]}),
    "dpo_sigmoid_norm": ("dpo_norm", {}),
    "dpo_sft": ("dpo", {"loss_types": ["sigmoid", "sft"], "loss_weights": [1.0, 0.5]}),
    "orpo": ("orpo", {}),
    "simpo": ("simpo", {"cpo_alpha": 0.0}),
    "simpo_sft": ("simpo", {"cpo_alpha": 0.5}),
    "kto": ("kto", {"desirable_weight": 1.0, "undesirable_weight": 1.2}),
}
BETA, GAMMA = 0.3, 0.4
# Parameters whose gradients are kept: below, within and above the blocks.
KEPT = ["model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight",
        "model.layers.1.mlp.down_proj.weight", "model.norm.weight", "lm_head.weight"]
KEPT_LORA = ["layers.0.self_attn.q_proj", "layers.1.mlp.down_proj"]


def draw():
    """Pairs of documents, the chosen answer first, with the length of their prompt; and log-probabilities
    of a reference, relative to the model's, so that margins are no zeros."""
    random = torch.Generator().manual_seed(7)
    documents, prompts = [], []
    for pair in range(PAIRS):
        prompt = torch.randint(3, VOCABULARY, (5 + 2 * pair,), generator=random)
        for length in (6 + pair, 9 - 2 * pair):
            answer = torch.randint(3, VOCABULARY, (length,), generator=random)
            documents.append(torch.cat([prompt, answer]))
            prompts.append(len(prompt))
    shift = torch.randn(2 * PAIRS, generator=random)
    return documents, prompts, shift


def padded(documents, prompts):
    """input_ids, attention_mask, labels (-100 outside answers), padded on the right."""
    most = max(map(len, documents))
    ids = torch.zeros(len(documents), most, dtype=torch.long)
    mask, labels = torch.zeros_like(ids), torch.full_like(ids, -100)
    for i, (document, prompt) in enumerate(zip(documents, prompts)):
        ids[i, :len(document)] = document
        mask[i, :len(document)] = 1
        labels[i, prompt:len(document)] = document[prompt:]
    return ids, mask, labels


def answer_logps(model, ids, mask, labels):
    logits = model(ids, attention_mask=mask, use_cache=False).logits[:, :-1]
    wanted = labels[:, 1:]
    logps = torch.log_softmax(logits, -1).gather(2, wanted.clamp(min=0).unsqueeze(2)).squeeze(2)
    return (logps * (wanted != -100)).sum(1)


def mismatched(documents, prompts):
    """Each prompt with the answer of the last row before it that has another prompt."""
    result = []
    for i in range(len(documents)):
        other = (i - 1) % len(documents)
        while torch.equal(documents[other][:prompts[other]], documents[i][:prompts[i]]):
            other = (other - 1) % len(documents)
        result.append(torch.cat([documents[i][:prompts[i]], documents[other][prompts[other]:]]))
    return result


class Accelerator:
    """Of one process."""

    device = torch.device("cpu")

    @staticmethod
    def gather(value):
        return value

    gather_for_metrics = gather


def trainer_of(kind, model, options):
    trainer = kind.__new__(kind)
    trainer.accelerator = Accelerator()
    trainer.model = model
    trainer._metrics = collections.defaultdict(lambda: collections.defaultdict(list))
    for name, value in {"beta": BETA, "label_smoothing": 0.0, "aux_loss_enabled": False,
                        "is_encoder_decoder": False, "padding_value": 0, "pad_token_id": 0, **options}.items():
        setattr(trainer, name, value)
    return trainer


def dpo(model, batch, inputs, options):
    reference = inputs["reference"]
    ids, mask, labels = batch
    order = torch.tensor([*range(0, 2 * PAIRS, 2), *range(1, 2 * PAIRS, 2)])  # chosen, then rejected
    trainer = trainer_of(DPOTrainer, model, {
        "ld_alpha": None, "precompute_ref_logps": True, "f_divergence_type": "reverse_kl", "use_weighting": False,
        "_total_train_tokens": 0, "loss_weights": [1.0], **options})
    rows = {"input_ids": ids[order], "attention_mask": mask[order],
            "completion_mask": (labels[order] != -100).long(),
            "ref_chosen_logps": reference[0::2], "ref_rejected_logps": reference[1::2]}
    loss = trainer._compute_loss(model, rows, False)
    metrics = trainer._metrics["train"]
    return loss, {name: metrics[name][-1] for name in
                  ("rewards/chosen", "rewards/rejected", "rewards/accuracies", "logps/chosen", "logps/rejected")}


def dpo_norm(model, batch, inputs, _):
    reference = inputs["reference"]
    ids, mask, labels = batch
    logps = answer_logps(model, ids, mask, labels)
    ratios = logps - reference
    means = ratios / (labels != -100).sum(1)
    loss = -torch.nn.functional.logsigmoid(BETA * (means[0::2] - means[1::2])).mean()
    rewards = BETA * ratios.detach()
    return loss, {"rewards/chosen": rewards[0::2].mean(), "rewards/rejected": rewards[1::2].mean(),
                  "rewards/accuracies": (rewards[0::2] > rewards[1::2]).float().mean(),
                  "logps/chosen": logps[0::2].mean().detach(), "logps/rejected": logps[1::2].mean().detach()}


def paired(kind):
    def run(model, batch, _, options):
        ids, mask, labels = batch
        trainer = trainer_of(kind, model, {"loss_type": "simpo", "simpo_gamma": GAMMA, "alpha": 0.0, **options})
        sides = {f"{side}_{name}": value[start::2] for side, start in (("chosen", 0), ("rejected", 1))
                 for name, value in (("input_ids", ids), ("attention_mask", mask), ("labels", labels))}
        loss, metrics = trainer.get_batch_loss_metrics(model, sides)
        return loss, {name: metrics[name] for name in ("rewards/chosen", "rewards/rejected", "rewards/accuracies")}
    return run


def kto(model, batch, inputs, options):
    ids, mask, labels = batch
    documents, prompts, _ = draw()
    kl_ids, kl_mask, kl_labels = padded(mismatched(documents, prompts), prompts)
    trainer = trainer_of(KTOTrainer, model, {
        "calculate_KL": True, "loss_type": "kto", "args": types.SimpleNamespace(use_liger_kernel=False), **options})
    rows = {"completion_input_ids": ids, "completion_attention_mask": mask, "completion_labels": labels,
            "KL_completion_input_ids": kl_ids, "KL_completion_attention_mask": kl_mask,
            "KL_completion_labels": kl_labels, "label": [i % 2 == 0 for i in range(len(documents))],
            "reference_logps": inputs["reference"], "reference_KL_logps": inputs["mismatched_reference"]}
    loss, metrics = trainer.get_batch_loss_metrics(model, rows)
    return loss, {"rewards/chosen": metrics["rewards/chosen_sum"] / PAIRS,
                  "rewards/rejected": metrics["rewards/rejected_sum"] / PAIRS,
                  "logps/chosen": metrics["logps/chosen_sum"] / PAIRS,
                  "logps/rejected": metrics["logps/rejected_sum"] / PAIRS,
                  "kl": metrics["kl"]}


RUNS = {"dpo": dpo, "dpo_norm": dpo_norm, "orpo": paired(ORPOTrainer), "simpo": paired(CPOTrainer), "kto": kto}


def load(folder):
    return families.auto_class(MODEL).from_pretrained(
        folder / MODEL, dtype=torch.float32, attn_implementation="eager").train()


def make_case(name, folder, inputs, out):
    documents, prompts, _ = draw()
    batch = padded(documents, prompts)
    run, options = CASES[name]
    full = load(folder)
    loss, metrics = RUNS[run](full, batch, inputs, options)
    loss.backward()
    made = {"loss": loss.detach(), **{f"grad.{key}": full.get_parameter(key).grad for key in KEPT}}
    made |= {key: torch.as_tensor(value, dtype=torch.float32) for key, value in metrics.items()}
    adapted = peft.PeftModel.from_pretrained(load(folder), folder / MODEL / "adapter", is_trainable=True)
    # The reference is the same numbers: only the model under it is another one.
    adapted_loss, _ = RUNS[run](adapted, batch, inputs, options)
    adapted_loss.backward()
    made["lora.loss"] = adapted_loss.detach()
    for key, parameter in adapted.named_parameters():
        if parameter.requires_grad and any(kept in key for kept in KEPT_LORA):
            made["lora.grad." + key.replace(".default.", ".")] = parameter.grad
    save_file({key: value.contiguous() for key, value in made.items()}, out / f"{name}.safetensors")


def make(out, goldens):
    out.mkdir(parents=True)
    folder = goldens / "families"
    documents, prompts, shift = draw()
    batch = padded(documents, prompts)
    with torch.no_grad():
        model = load(folder)
        reference = answer_logps(model, *batch) + shift
        # z is 0 unless the mismatched answers have become likelier.
        mixed = answer_logps(model, *padded(mismatched(documents, prompts), prompts)) - 0.5 - shift.abs()
    inputs = {"tokens": torch.cat(documents), "lengths": torch.tensor([len(d) for d in documents]),
              "prompts": torch.tensor(prompts), "reference": reference,
              "mismatched_reference": mixed}
    save_file(inputs, out / "inputs.safetensors")
    for name in CASES:
        make_case(name, folder, inputs, out)
