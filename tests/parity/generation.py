"""What transformers generates: greedy answers of every tiny model of families.py, alone and with its
adapter, and the probabilities that its logits processors leave to sample from.

tests/parity/README.md lists the files.
"""

import json

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

import families

PROMPTS = [3, 9, 17]  # tokens of each prompt
NEW_TOKENS = 20
# A token whose logit leads by less may be another with another order of sums.
LEAST_LEAD = 2e-4
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


def greedy(name, folder):
    model = families.auto_class(name).from_pretrained(folder, dtype=torch.float32,
                                                      attn_implementation="eager").eval()
    # Here all tokens are text, those too that stand for an image elsewhere.
    for key in ("image_token_id", "video_token_id", "audio_token_id", "boi_token_id", "eoi_token_id"):
        if getattr(model.config, key, None) is not None:
            setattr(model.config, key, -1)
    generator = families.seeded(f"{name} prompts")
    vocabulary = model.get_input_embeddings().num_embeddings
    text = model.config.get_text_config()
    new_tokens = min(NEW_TOKENS, text.max_position_embeddings - max(PROMPTS)) if text.model_type == "gpt2" else NEW_TOKENS
    prompts = [torch.randint(3, vocabulary, (length,), generator=generator).tolist() for length in PROMPTS]
    # transformers caches keys as they were rotated; past the length at which longrope changes its
    # frequencies, the tokens before it would have those of a short text.
    options = {"use_cache": "longrope" not in name}
    case = {"prompts": prompts, "plain": [answer(model, p, new_tokens, **options) for p in prompts],
            # Tied heads like to say the same again.
            "unrepeated": [answer(model, p, new_tokens, no_repeat_ngram_size=1, **options) for p in prompts]}
    wrapped = peft.PeftModel.from_pretrained(model, folder / "adapter").eval()
    case["adapted"] = [answer(wrapped, p, new_tokens, **options) for p in prompts]
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


def make(out, goldens):
    torch.set_num_threads(1)
    out.mkdir(parents=True)
    answers = {name: greedy(name, goldens / "families" / name) for name in families.CASES}
    lines = [f" {json.dumps(name)}: {json.dumps(case)}" for name, case in answers.items()]
    (out / "greedy.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    sampling(out)
    for name, case in answers.items():
        print(f"generation/{name}", *(len(a["tokens"]) for kind in ("plain", "unrepeated", "adapted") for a in case[kind]))
