//! tokenizer.json made of the files that models have in its place: vocab.json with merges.txt, a
//! SentencePiece model, a tiktoken file, or tekken.json. What comes out is what transformers 5.17 makes of them.

use crate::memory::Budget;
use crate::sentencepiece::{self, SentencePieces};
use crate::tiktoken;
use serde_json::{json, Map, Value as Json};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Memory that a conversion may take for each byte of its files, and in any case.
const MEMORY_FACTOR: usize = 256;
const FREE_MEMORY: usize = 512 << 20;

/// Bytes of the longest token: each of its halves is looked up. The longest that models have is a
/// line of 128 spaces or so.
const LONGEST_TOKEN: usize = 1024;

const NAMED: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

const GPT2: &str = "GPT2Tokenizer";
const GPT_NEOX: &str = "GPTNeoXTokenizer";
const QWEN2: &str = "Qwen2Tokenizer";
const QWEN3_5: &str = "Qwen3_5Tokenizer";
const LLAMA: &str = "LlamaTokenizer";
const GEMMA: &str = "GemmaTokenizer";

const QWEN2_SPLIT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN3_5_SPLIT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// A token that is found in a text by itself, before the text is split.
#[derive(Clone, PartialEq)]
pub struct Token {
    content: String,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    normalized: bool,
    special: bool,
}

impl Token {
    pub fn new(content: &str, normalized: bool, special: bool) -> Self {
        let content = content.to_string();
        Self { content, single_word: false, lstrip: false, rstrip: false, normalized, special }
    }

    pub fn special(content: &str) -> Self {
        Self::new(content, false, true)
    }

    /// Written as a text, which is special, or as an object with its flags.
    fn read(value: &Json) -> Option<Self> {
        if let Some(text) = value.as_str() {
            return Some(Self::special(text));
        }
        let flag = |name: &str| value.get(name).and_then(Json::as_bool);
        let special = flag("special").unwrap_or(false);
        Some(Self {
            content: value.get("content")?.as_str()?.to_string(),
            single_word: flag("single_word").unwrap_or(false),
            lstrip: flag("lstrip").unwrap_or(false),
            rstrip: flag("rstrip").unwrap_or(false),
            normalized: flag("normalized").unwrap_or(!special),
            special,
        })
    }

    fn json(&self, id: u32) -> Json {
        json!({"id": id, "content": self.content, "single_word": self.single_word,
               "lstrip": self.lstrip, "rstrip": self.rstrip, "normalized": self.normalized,
               "special": self.special})
    }
}

/// What the JSON files beside the vocabulary say.
struct Request {
    /// The class of transformers whose tokenizer is made; empty: none is known.
    class: String,
    /// The class's special tokens by key, for those that tokenizer_config.json does not have.
    defaults: Json,
    config: Json,
    special_tokens_map: Json,
    added_tokens: Json,
    /// How texts are split before a tiktoken vocabulary is used; empty: not known.
    pattern: String,
}

impl Request {
    fn parse(text: &str) -> Result<Self, String> {
        let mut json: Json = serde_json::from_str(text).map_err(|e| e.to_string())?;
        let mut take = |key: &str| json.get_mut(key).map_or(Json::Null, Json::take);
        Ok(Self {
            class: take("class").as_str().unwrap_or("").to_string(),
            defaults: take("defaults"),
            config: take("tokenizer_config"),
            special_tokens_map: take("special_tokens_map"),
            added_tokens: take("added_tokens"),
            pattern: take("pattern").as_str().unwrap_or("").to_string(),
        })
    }

    fn flag(&self, key: &str) -> Option<bool> {
        self.config.get(key).and_then(Json::as_bool)
    }

    fn add_prefix_space(&self, default: bool) -> bool {
        self.flag("add_prefix_space").unwrap_or(default)
    }

    /// special_tokens_map.json counts only beside a config that does not list the added tokens.
    fn map(&self) -> &Json {
        static NOTHING: Json = Json::Null;
        let listed = self.config.get("added_tokens_decoder").is_some();
        if listed {
            &NOTHING
        } else {
            &self.special_tokens_map
        }
    }

    fn named(&self, key: &str) -> Option<Token> {
        if let Some(value) = self.map().get(key) {
            return Some(Token { special: true, ..Token::read(value)? });
        }
        let value = self.config.get(key).or_else(|| self.defaults.get(key))?;
        Token::read(value)
    }

    /// The tokens with names of their own: the usual ones, then the model's ("image_token").
    fn all_named(&self) -> Vec<Token> {
        let mut tokens: Vec<_> = NAMED.iter().filter_map(|key| self.named(key)).collect();
        let empty = Map::new();
        for (key, value) in self.config.as_object().unwrap_or(&empty) {
            if key.ends_with("_token") && value.is_string() && !NAMED.contains(&key.as_str()) {
                tokens.extend(Token::read(value));
            }
        }
        if let Some(Json::Object(extra)) = self.config.get("extra_special_tokens") {
            tokens.extend(extra.values().filter_map(Token::read));
        }
        tokens
    }

    /// The special tokens without names; none where no file lists them.
    fn extra(&self) -> Option<Vec<Token>> {
        let lists =
            [self.config.get("extra_special_tokens"), self.config.get("additional_special_tokens")];
        let list = lists.into_iter().flatten().find_map(Json::as_array)?;
        Some(list.iter().filter_map(Token::read).collect())
    }

    fn extra_of_map(&self) -> Vec<Token> {
        let keys = ["extra_special_tokens", "additional_special_tokens"];
        let list = keys.iter().find_map(|key| self.map().get(key).and_then(Json::as_array));
        list.map_or(Vec::new(), |list| list.iter().filter_map(Token::read).collect())
    }

    /// The tokens that are listed with their ids.
    fn listed(&self, named: &[Token]) -> Result<BTreeMap<u32, Token>, String> {
        let mut tokens = BTreeMap::new();
        if let Some(Json::Object(listed)) = self.config.get("added_tokens_decoder") {
            for (id, value) in listed {
                let id = id.parse().map_err(|_| {
                    format!("tokenizer_config.json: added_tokens_decoder has the id \"{id}\"")
                })?;
                let token = Token::read(value).ok_or_else(|| {
                    format!("tokenizer_config.json: added_tokens_decoder: {id} has no content")
                })?;
                tokens.insert(id, token);
            }
        } else if let Json::Object(listed) = &self.added_tokens {
            let extra: Vec<_> =
                self.extra().unwrap_or_default().into_iter().chain(self.extra_of_map()).collect();
            for (text, id) in listed {
                let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
                let id = id.ok_or_else(|| format!("added_tokens.json: {text} has no id"))?;
                let special = named.iter().chain(&extra).any(|token| token.content == *text);
                tokens.insert(id, Token::new(text, !special, special));
            }
        }
        Ok(tokens)
    }
}

/// A vocabulary and how texts are split for it.
pub struct Parts {
    pub model: Json,
    pub ids: HashMap<String, u32>,
    pub normalizer: Json,
    pub pre_tokenizer: Json,
    pub decoder: Json,
    /// In place of the template with BOS and EOS where no file asks for them.
    pub post_processor: Json,
    /// Special tokens that the vocabulary's own file lists; no others are needed then.
    pub own_tokens: Vec<Token>,
    /// Tokens that take the first ids behind the vocabulary, in this order.
    pub first_tokens: Vec<Token>,
}

pub fn bpe(vocabulary: Json, merges: Json, options: Json) -> Json {
    let mut model = json!({"type": "BPE", "dropout": null, "unk_token": null,
        "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
        "byte_fallback": false, "ignore_merges": false});
    if let Json::Object(options) = options {
        for (key, value) in options {
            model[key] = value;
        }
    }
    model["vocab"] = vocabulary;
    model["merges"] = merges;
    model
}

pub fn byte_level(add_prefix_space: bool, trim_offsets: bool, use_regex: bool) -> Json {
    json!({"type": "ByteLevel", "add_prefix_space": add_prefix_space,
           "trim_offsets": trim_offsets, "use_regex": use_regex})
}

pub fn split_then_bytes(pattern: &str, add_prefix_space: bool) -> Json {
    json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
        byte_level(add_prefix_space, true, false)]})
}

pub fn refuse_long(token: &[u8]) -> Result<(), String> {
    if token.len() <= LONGEST_TOKEN {
        return Ok(());
    }
    Err(format!("a token of {} bytes; {LONGEST_TOKEN} are read at most", token.len()))
}

/// As `sft_tokenizer_convert` says.
pub fn convert(request: &str, vocabulary: &[u8], merges: &[u8]) -> Result<String, String> {
    let bytes = request.len() + vocabulary.len() + merges.len();
    let _budget = Budget::new(
        "the tokenizer",
        FREE_MEMORY.saturating_add(bytes.saturating_mul(MEMORY_FACTOR)),
    );
    if vocabulary.starts_with(b"version https://git-lfs") {
        return Err("it is a pointer of Git LFS; fetch the file itself (git lfs pull)".into());
    }
    let mut request = Request::parse(request)?;
    let parts = if !merges.is_empty() {
        of_merges(&request, vocabulary, merges)?
    } else if vocabulary.starts_with(b"{") {
        tiktoken::tekken(vocabulary)?
    } else if tiktoken::is_one(vocabulary) {
        of_tiktoken(&request, vocabulary)?
    } else {
        of_sentence_pieces(&mut request, SentencePieces::parse(vocabulary)?)?
    };
    assemble(&request, parts)
}

fn of_merges(request: &Request, vocabulary: &[u8], merges: &[u8]) -> Result<Parts, String> {
    let (normalizer, pre_tokenizer) = match request.class.as_str() {
        GPT2 => (Json::Null, byte_level(request.add_prefix_space(false), true, true)),
        GPT_NEOX => (
            json!({"type": "NFC"}),
            byte_level(
                request.add_prefix_space(false),
                request.flag("trim_offsets").unwrap_or(true),
                true,
            ),
        ),
        QWEN2 => {
            (json!({"type": "NFC"}), split_then_bytes(QWEN2_SPLIT, request.add_prefix_space(false)))
        }
        QWEN3_5 => (
            json!({"type": "NFC"}),
            split_then_bytes(QWEN3_5_SPLIT, request.add_prefix_space(false)),
        ),
        _ => return Err("they do not say how a text is split before they are used".into()),
    };
    let Ok(Json::Object(vocabulary)) = serde_json::from_slice(vocabulary) else {
        return Err("vocab.json is not a JSON object".into());
    };
    let mut ids = HashMap::with_capacity(vocabulary.len());
    for (text, id) in &vocabulary {
        let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
        ids.insert(text.clone(), id.ok_or_else(|| format!("vocab.json: \"{text}\" has no id"))?);
    }
    let merges = std::str::from_utf8(merges)
        .map_err(|error| format!("merges.txt is not UTF-8 at byte {}", error.valid_up_to()))?;
    let mut pairs = Vec::new();
    for (number, line) in merges.lines().enumerate() {
        if line.starts_with("#version") || line.is_empty() {
            continue;
        }
        match line.split_once(' ') {
            Some((left, right)) if !right.contains(' ') => pairs.push(json!([left, right])),
            _ => return Err(format!("merges.txt: line {} is not two tokens", number + 1)),
        }
    }
    let options = json!({"continuing_subword_prefix": "", "end_of_word_suffix": ""});
    Ok(Parts {
        model: bpe(Json::Object(vocabulary), Json::Array(pairs), options),
        ids,
        normalizer,
        pre_tokenizer,
        decoder: byte_level(true, true, true),
        post_processor: Json::Null,
        own_tokens: Vec::new(),
        first_tokens: Vec::new(),
    })
}

/// The ids behind the vocabulary are given without gaps: one that no file names gets a name.
fn of_tiktoken(request: &Request, vocabulary: &[u8]) -> Result<Parts, String> {
    if request.pattern.is_empty() {
        return Err("how models of this type split texts for a tiktoken file is not known".into());
    }
    let mut parts = tiktoken::parts(vocabulary, &request.pattern)?;
    let listed = request.listed(&request.all_named())?;
    let end = listed.last_key_value().map_or(0, |(id, _)| id + 1);
    for id in parts.ids.len() as u32..end {
        parts.first_tokens.push(match listed.get(&id) {
            Some(token) => Token::special(&token.content),
            None => Token::special(&format!("<|reserved_token_{id}|>")),
        });
    }
    parts.first_tokens.extend(request.extra().unwrap_or_default());
    Ok(parts)
}

fn of_sentence_pieces(request: &mut Request, pieces: SentencePieces) -> Result<Parts, String> {
    match request.class.as_str() {
        LLAMA => {
            // Without the old behaviour only the start of a text gets a space.
            let scheme = match (request.add_prefix_space(true), request.flag("legacy")) {
                (false, _) => "never",
                (true, Some(true)) => "always",
                (true, _) => "first",
            };
            sentencepiece::llama(&pieces, scheme)
        }
        GEMMA => {
            let unknown = request.named("unk_token").map(|token| token.content);
            sentencepiece::gemma(&pieces, unknown)
        }
        "" | "TokenizersBackend" | "PreTrainedTokenizer" | "PreTrainedTokenizerFast" => {
            request.defaults = pieces.special_tokens();
            let listed = request.listed(&[])?;
            let renamed: Vec<_> =
                listed.into_iter().map(|(id, token)| (id, token.content)).collect();
            sentencepiece::plain(&pieces, &renamed)
        }
        other => Err(format!(
            "a SentencePiece model can be used as a {LLAMA} or {GEMMA}, and tokenizer_class is {other}"
        )),
    }
}

fn assemble(request: &Request, parts: Parts) -> Result<String, String> {
    let mut named = request.all_named();
    let listed = request.listed(&named)?;
    for token in &mut named {
        if let Some(known) = listed.values().find(|known| known.content == token.content) {
            *token = known.clone();
        }
    }
    let mut extra = request.extra().unwrap_or(parts.own_tokens);
    extra.extend(request.extra_of_map());

    let mut tokens = parts.first_tokens;
    tokens.extend(listed.into_values());
    let known: HashSet<_> = tokens.iter().map(|token| token.content.clone()).collect();
    tokens.extend(
        named.iter().chain(&extra).filter(|token| !known.contains(&token.content)).cloned(),
    );
    for token in &mut tokens {
        token.special |= named.iter().any(|name| name.content == token.content);
    }
    if request.class == QWEN2 {
        tokens.extend(named.iter().chain(&extra).map(|token| Token::special(&token.content)));
    }

    let mut next = parts.ids.len() as u32;
    let mut new_ids: HashMap<String, u32> = HashMap::new();
    let mut added = BTreeMap::new();
    for token in tokens {
        let id = match parts.ids.get(&token.content).or(new_ids.get(&token.content)) {
            Some(id) => *id,
            None => {
                new_ids.insert(token.content.clone(), next);
                next += 1;
                next - 1
            }
        };
        added.insert(id, token);
    }
    let id_of = |token: &Token| {
        added.iter().find(|(_, other)| other.content == token.content).map(|(id, _)| *id)
    };
    let added_json: Vec<_> = added.iter().map(|(id, token)| token.json(*id)).collect();
    let asked = ["add_bos_token", "add_eos_token"].map(|key| request.flag(key));
    let post_processor = if parts.post_processor.is_null() || asked.iter().any(Option::is_some) {
        let around = ["bos_token", "eos_token"].map(|key| request.named(key));
        let [bos, eos] = [0, 1].map(|i| {
            let token = around[i].as_ref().filter(|_| asked[i] == Some(true))?;
            Some((token.content.clone(), id_of(token)?))
        });
        template(bos, eos)
    } else {
        parts.post_processor
    };
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added_json,
        "normalizer": parts.normalizer,
        "pre_tokenizer": parts.pre_tokenizer,
        "post_processor": post_processor,
        "decoder": parts.decoder,
        "model": parts.model,
    });
    Ok(tokenizer.to_string())
}

/// The post-processor that puts BOS before a text and EOS behind it.
fn template(bos: Option<(String, u32)>, eos: Option<(String, u32)>) -> Json {
    let piece = |token: &Option<(String, u32)>, part: u32| {
        token.as_ref().map(|(text, _)| json!({"SpecialToken": {"id": text, "type_id": part}}))
    };
    let around = |id: &str, part: u32| {
        let text = json!({"Sequence": {"id": id, "type_id": part}});
        [piece(&bos, part), Some(text), piece(&eos, part)].into_iter().flatten()
    };
    let single: Vec<_> = around("A", 0).collect();
    let pair: Vec<_> = around("A", 0).chain(around("B", 1)).collect();
    let mut special = Map::new();
    for (text, id) in bos.iter().chain(&eos) {
        special.insert(text.clone(), json!({"id": text, "ids": [id], "tokens": [text]}));
    }
    json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special})
}
