"""What transformers generates: greedy answers and beam searches of every tiny model of families.py, alone and with its
adapter, and the probabilities that its logits processors leave to sample from.

tests/parity/README.md lists the files.
"""

import json

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

import experts
import families

PROMPTS = [3, 9, 17]  # tokens of each prompt
NEW_TOKENS = 20
# A token whose logit leads by less may be another with another order of sums.
LEAST_LEAD = 2e-4
# The same of a candidate of a search, of which there are many at each token.
LEAST_SEARCH_LEAD = 2e-5
# The same of a router's choice, which changes all logits; there are a thousand and more in the answers of a model.
LEAST_ROUTER_LEAD = 1e-4
# Where the first prompts have answers that are soon too close to call.
PROMPT_SEEDS = {"gemma4_moe_tied": "gemma4_moe_tied prompts 5"}
VOCABULARY, ROWS = 300, 4
# Options by the names of transformers' generation config; each case has all of them.
PLAIN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0,
         "no_repeat_ngram_size": 0, "min_new_tokens": 0}
SAMPLING = [
    {},
    {"temperature": 0.7},
    {"temperature": 1.9},
    {"top_k": 1},
    {"top_k": 17},
    {"top_k": 5000},
    {"top_p": 0.9},
    {"top_p": 0.2},
    {"min_p": 0.05},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.8},
    {"no_repeat_ngram_size": 1},
    {"no_repeat_ngram_size": 3},
    {"min_new_tokens": 4},
    {"temperature": 0.6, "top_k": 40, "top_p": 0.95},
    {"temperature": 1.2, "top_k": 60, "top_p": 0.9, "min_p": 0.03, "repetition_penalty": 1.1,
     "no_repeat_ngram_size": 2, "min_new_tokens": 9},
]
EOS = [7, 11]
# Searches with beams, by the names of transformers' generation config.
BEAMS = [
    {"num_beams": 2},
    {"num_beams": 4, "length_penalty": 0.6},
    {"num_beams": 4, "length_penalty": 2.0, "early_stopping": "never"},
    {"num_beams": 3, "length_penalty": -1.0, "early_stopping": True},
    {"num_beams": 3, "no_repeat_ngram_size": 2, "repetition_penalty": 1.2, "min_new_tokens": 5},
    {"num_beams": 5, "length_penalty": 0.0, "early_stopping": "never", "no_repeat_ngram_size": 1},
]


def answer(model, prompt, new_tokens, **options):
    """The greedy continuation up to the first token that does not lead clearly, and the model's own
    logarithms of its tokens' probabilities."""
    out = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=new_tokens,
                         min_new_tokens=new_tokens, eos_token_id=None, pad_token_id=0,
                         return_dict_in_generate=True, output_logits=True, output_scores=True, **options)
    tokens, logs = out.sequences[0, len(prompt):].tolist(), []
    for token, scores, logits in zip(tokens, out.scores, out.logits):
        best = scores[0].float().topk(2).values
        if best[0] - best[1] < LEAST_LEAD:
            break
        logs.append(round(torch.log_softmax(logits[0].float(), dim=-1)[token].item(), 5))
    return {"tokens": tokens[:len(logs)], "log_probabilities": logs}


class Closest:
    """Looks at every choice of a search: the least lead of a candidate over the one after it."""

    def __init__(self, model):
        self.model, self.lead = model, float("inf")
        self.choose = model._get_top_k_continuations

    def __enter__(self):
        def look(accumulated_log_probs, **others):
            best = accumulated_log_probs[0].topk(others["beams_to_keep"] + 1).values
            best = best[best > -1e8]
            if len(best) > 1:
                self.lead = min(self.lead, (best[:-1] - best[1:]).min().item())
            return self.choose(accumulated_log_probs=accumulated_log_probs, **others)
        self.model._get_top_k_continuations = look
        return self

    def __exit__(self, *_):
        del self.model._get_top_k_continuations


def search(model, prompt, eos, options, **others):
    out = model.generate(torch.tensor([prompt]), do_sample=False, eos_token_id=eos or None, pad_token_id=0,
                         return_dict_in_generate=True, output_scores=True,
                         num_return_sequences=options["num_beams"], **options, **others)
    answers = []
    for row, score in zip(out.sequences[:, len(prompt):].tolist(), out.sequences_scores.tolist()):
        ends = [i for i, token in enumerate(row) if token in eos]
        answers.append({"tokens": row[:ends[0]] if ends else row, "score": round(score, 5),
                        "stopped": bool(ends)})
    return answers


def searches(name, model, vocabulary, new_tokens, **others):
    """Beam searches that no other order of sums decides otherwise. Tokens that end an answer are some that
    the search without them finds."""
    generator = families.seeded(f"{name} beams")
    cases = []
    for options in BEAMS:
        for _ in range(50):
            prompt = torch.randint(3, vocabulary, (11,), generator=generator).tolist()
            asked = {"max_new_tokens": new_tokens, **options}
            free = search(model, prompt, [], asked, **others)
            eos = sorted({free[0]["tokens"][new_tokens // 3], free[1]["tokens"][new_tokens // 2],
                          free[-1]["tokens"][1]})
            with Closest(model) as closest, experts.Choices() as choices:
                answers = search(model, prompt, eos, asked, **others)
            scores = [a["score"] for a in answers]
            apart = all(abs(a - b) > LEAST_SEARCH_LEAD for i, a in enumerate(scores) for b in scores[:i])
            if closest.lead >= LEAST_SEARCH_LEAD and choices.lead >= LEAST_ROUTER_LEAD and apart:
                break
        else:
            raise AssertionError(f"{name}: every search with {options} is too close to call")
        cases.append({"prompt": prompt, "eos": eos, "options": asked, "answers": answers})
    return cases


def greedy(name, folder):
    model = families.auto_class(name).from_pretrained(folder, **families.EAGER).eval()
    # Here all tokens are text, those too that stand for an image elsewhere.
    for key in ("image_token_id", "video_token_id", "audio_token_id", "boi_token_id", "eoi_token_id"):
        if getattr(model.config, key, None) is not None:
            setattr(model.config, key, -1)
    generator = families.seeded(PROMPT_SEEDS.get(name, f"{name} prompts"))
    vocabulary = model.get_input_embeddings().num_embeddings
    text = model.config.get_text_config()
    new_tokens = min(NEW_TOKENS, text.max_position_embeddings - max(PROMPTS)) if text.model_type == "gpt2" else NEW_TOKENS
    prompts = [torch.randint(3, vocabulary, (length,), generator=generator).tolist() for length in PROMPTS]
    # transformers caches keys as they were rotated; past the length at which longrope changes its
    # frequencies, the tokens before it would have those of a short text.
    options = {"use_cache": "longrope" not in name}
    with experts.Choices() as choices:
        case = {"prompts": prompts, "plain": [answer(model, p, new_tokens, **options) for p in prompts],
                # Tied heads like to say the same again.
                "unrepeated": [answer(model, p, new_tokens, no_repeat_ngram_size=1, **options) for p in prompts]}
    case["searches"] = searches(name, model, vocabulary, min(new_tokens, 14), **options)
    wrapped = peft.PeftModel.from_pretrained(model, folder / "adapter").eval()
    with choices:
        case["adapted"] = [answer(wrapped, p, new_tokens, **options) for p in prompts]
    if choices.lead < LEAST_ROUTER_LEAD:
        raise AssertionError(f"{name}: a choice of experts leads by {choices.lead:.1e} only: take other prompts")
    return case


def processors(options, prompt_length):
    """The list that transformers makes of these options, in its order."""
    o = {**PLAIN, **options}
    made = transformers.LogitsProcessorList()
    if o["repetition_penalty"] != 1.0:
        made.append(transformers.RepetitionPenaltyLogitsProcessor(o["repetition_penalty"]))
    if o["no_repeat_ngram_size"] > 0:
        made.append(transformers.NoRepeatNGramLogitsProcessor(o["no_repeat_ngram_size"]))
    if o["min_new_tokens"] > 0:
        made.append(transformers.MinNewTokensLengthLogitsProcessor(prompt_length, o["min_new_tokens"], EOS, device="cpu"))
    if o["temperature"] != 1.0:
        made.append(transformers.TemperatureLogitsWarper(o["temperature"]))
    if o["top_k"] > 0:
        made.append(transformers.TopKLogitsWarper(o["top_k"]))
    if o["top_p"] < 1.0:
        made.append(transformers.TopPLogitsWarper(o["top_p"]))
    if o["min_p"] > 0.0:
        made.append(transformers.MinPLogitsWarper(o["min_p"]))
    return made


def sampling(folder):
    generator = families.seeded("sampling")
    logits = torch.randn(ROWS, VOCABULARY, generator=generator) * 3.0
    logits[0, 40:44] = logits[0].topk(17).values[-1]  # ties at the 17th place stay
    tokens = torch.randint(0, 30, (ROWS, 24), generator=generator)
    tensors, cases = {"logits": logits, "tokens": tokens}, []
    prompt_length = 16
    for i, options in enumerate(SAMPLING):
        scores = processors(options, prompt_length)(tokens, logits.clone())
        tensors[f"probabilities.{i}"] = torch.softmax(scores, dim=-1)
        cases.append({**PLAIN, **options})
    save_file(tensors, folder / "sampling.safetensors")
    text = {"prompt_length": prompt_length, "eos": EOS, "cases": cases}
    (folder / "sampling.json").write_text(json.dumps(text, indent=1) + "\n")


def write(path, cases):
    lines = [f" {json.dumps(name)}: {json.dumps(case)}" for name, case in cases.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def make(out, goldens):
    torch.set_num_threads(1)
    out.mkdir(parents=True)
    answers = {name: greedy(name, goldens / "families" / name) for name in families.CASES}
    write(out / "beams.json", {name: case.pop("searches") for name, case in answers.items()})
    write(out / "greedy.json", answers)
    sampling(out)
    for name, case in answers.items():
        print(f"generation/{name}", *(len(a["tokens"]) for kind in ("plain", "unrepeated", "adapted") for a in case[kind]))
