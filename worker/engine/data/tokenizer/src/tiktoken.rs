//! tiktoken vocabularies: a line for each token, its bytes in base64 and its rank. Mistral's
//! tekken.json is the same in JSON.

use crate::convert::{bpe, byte_level, refuse_long, split_then_bytes, Parts, Token};
use serde_json::{json, Map, Value as Json};
use std::collections::HashMap;

/// Special tokens of a tekken.json at most.
const LARGEST_COUNT: usize = 100_000;

fn entry(line: &str) -> Option<(Vec<u8>, u32)> {
    let (token, rank) = line.trim_end().split_once(' ')?;
    Some((base64::decode(token).ok()?, rank.parse().ok()?))
}

/// True if the first line is a token with its rank. A SentencePiece model begins with a line feed.
pub fn is_one(file: &[u8]) -> bool {
    let line = file.split(|byte| *byte == b'\n').next().unwrap_or(file);
    std::str::from_utf8(line).ok().and_then(entry).is_some()
}

/// The letters that stand for bytes in byte-level vocabularies.
fn byte_letters() -> Vec<char> {
    let printable = |byte: u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut others = 0x100..;
    (0..256u32)
        .map(|byte| if printable(byte) { byte } else { others.next().unwrap_or(byte) })
        .filter_map(char::from_u32)
        .collect()
}

/// The tokens of a tiktoken file in the order of their ranks, which are their ids.
pub fn parts(file: &[u8], pattern: &str) -> Result<Parts, String> {
    let text = std::str::from_utf8(file).map_err(|_| "not a tiktoken vocabulary")?;
    let mut tokens: Vec<(Vec<u8>, u32)> = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
        let token = entry(line)
            .ok_or_else(|| format!("line {} is not a token in base64 and its rank", number + 1))?;
        tokens.push(token);
    }
    tokens.sort_by_key(|(_, rank)| *rank);
    ranked(&tokens, &[], pattern)
}

/// Mistral's tekken.json: the special tokens have the first ids, and the pattern is in it.
pub fn tekken(file: &[u8]) -> Result<Parts, String> {
    let file: Json = serde_json::from_slice(file).map_err(|error| error.to_string())?;
    let config = &file["config"];
    let pattern = config["pattern"].as_str().ok_or("config.pattern is missing")?;
    let vocabulary = file["vocab"].as_array().ok_or("vocab is missing")?;
    let listed = file["special_tokens"].as_array().ok_or("special_tokens is missing")?;
    let number = |value: &Json| value.as_u64().and_then(|value| usize::try_from(value).ok());
    let count = number(&config["default_num_special_tokens"]).unwrap_or(listed.len());
    // The rest of a vocabulary that is longer than the model's is never used.
    let size = number(&config["default_vocab_size"])
        .map_or(vocabulary.len(), |size| size.saturating_sub(count).min(vocabulary.len()));
    if count < listed.len() || count > LARGEST_COUNT {
        return Err(format!("{count} special tokens, and {} are listed", listed.len()));
    }
    let mut special: Vec<_> = (0..count).map(|id| format!("<SPECIAL_{id}>")).collect();
    for token in listed {
        let place = number(&token["rank"]).filter(|rank| *rank < listed.len());
        let text = token["token_str"].as_str();
        let (Some(place), Some(text)) = (place, text) else {
            return Err("a special token has no text, or a rank that is not its place".into());
        };
        special[place] = text.to_string();
    }
    let mut tokens = Vec::with_capacity(size);
    for (id, token) in vocabulary[..size].iter().enumerate() {
        let bytes = token["token_bytes"].as_str().and_then(|bytes| base64::decode(bytes).ok());
        let bytes = bytes.ok_or_else(|| format!("token {id} has no bytes in base64"))?;
        tokens.push((bytes, (count + id) as u32));
    }
    ranked(&tokens, &special, pattern)
}

/// `special`: the tokens before the first of `tokens`, which come by id.
fn ranked(tokens: &[(Vec<u8>, u32)], special: &[String], pattern: &str) -> Result<Parts, String> {
    let ranks: HashMap<&[u8], u32> =
        tokens.iter().map(|(token, rank)| (token.as_slice(), *rank)).collect();
    let letters = byte_letters();
    let spell = |token: &[u8]| token.iter().map(|byte| letters[usize::from(*byte)]).collect();

    let mut vocabulary = Map::new();
    let mut ids = HashMap::with_capacity(special.len() + tokens.len());
    for (text, id) in special.iter().zip(0..) {
        vocabulary.insert(text.clone(), json!(id));
        ids.insert(text.clone(), id);
    }
    let mut merges = Vec::new();
    for (token, rank) in tokens {
        refuse_long(token)?;
        let text: String = spell(token);
        vocabulary.insert(text.clone(), json!(rank));
        ids.insert(text, *rank);
        let mut pairs = Vec::new();
        for at in 1..token.len() {
            let (left, right) = token.split_at(at);
            if let (Some(first), Some(second)) = (ranks.get(left), ranks.get(right)) {
                let pair: [String; 2] = [spell(left), spell(right)];
                pairs.push((first, second, pair));
            }
        }
        pairs.sort();
        merges.extend(pairs.into_iter().map(|(_, _, pair)| json!(pair)));
    }
    let options = json!({"ignore_merges": true});
    Ok(Parts {
        model: bpe(Json::Object(vocabulary), Json::Array(merges), options),
        ids,
        normalizer: Json::Null,
        pre_tokenizer: split_then_bytes(pattern, false),
        decoder: byte_level(true, true, true),
        post_processor: byte_level(true, false, true),
        own_tokens: Vec::new(),
        first_tokens: special.iter().map(|text| Token::special(text)).collect(),
    })
}
