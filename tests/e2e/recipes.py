"""The config.json of the models that the job files of configs/ name, as published, without what plans do not read."""

GEMMA3_27B = {
    "model_type": "gemma3", "text_config": {
        "model_type": "gemma3_text", "hidden_size": 5376, "intermediate_size": 21504, "num_hidden_layers": 62,
        "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128, "query_pre_attn_scalar": 168,
        "sliding_window": 1024, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}}


def llama(family, hidden, inner, layers, heads, keys, vocab, **more):
    return {"model_type": family, "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
            "num_attention_heads": heads, "num_key_value_heads": keys, "vocab_size": vocab,
            "max_position_embeddings": 32768, **more}


CONFIGS = {
    "Qwen/Qwen2.5-7B-Instruct": llama("qwen2", 3584, 18944, 28, 28, 4, 152064),
    "Qwen/Qwen2.5-14B-Instruct": llama("qwen2", 5120, 13824, 48, 40, 8, 152064),
    "Qwen/Qwen2.5-72B-Instruct": llama("qwen2", 8192, 29568, 80, 64, 8, 152064),
    "Qwen/Qwen3-8B": llama("qwen3", 4096, 12288, 36, 32, 8, 151936, head_dim=128),
    "Qwen/Qwen3-8B-Base": llama("qwen3", 4096, 12288, 36, 32, 8, 151936, head_dim=128),
    "Qwen/Qwen3-32B": llama("qwen3", 5120, 25600, 64, 64, 8, 151936, head_dim=128),
    "google/gemma-3-27b-it": GEMMA3_27B,
    "meta-llama/Llama-3.1-70B-Instruct": llama("llama", 8192, 28672, 80, 64, 8, 128256),
    "microsoft/DialoGPT-medium": {"model_type": "gpt2", "n_embd": 1024, "n_layer": 24, "n_head": 16},
    "mistralai/Mistral-7B-Instruct-v0.3": llama("mistral", 4096, 14336, 32, 32, 8, 32768, sliding_window=None),
    "openai-community/gpt2": {"model_type": "gpt2"},
    "openai/gpt-oss-20b": {"model_type": "gpt_oss", "num_hidden_layers": 24, "num_local_experts": 32,
                           "quantization_config": {"quant_method": "mxfp4"}},
    "unsloth/Llama-3.2-1B-Instruct": llama("llama", 2048, 8192, 16, 32, 8, 128256, head_dim=64,
                                           tie_word_embeddings=True),
}
