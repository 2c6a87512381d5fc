//! tiktoken vocabularies: a line for each token, its bytes in base64 and its rank.

use crate::convert::{bpe, byte_level, refuse_long, split_then_bytes, Parts};
use serde_json::{json, Map, Value as Json};
use std::collections::HashMap;

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

pub fn parts(file: &[u8], pattern: &str) -> Result<Parts, String> {
    let text = std::str::from_utf8(file).map_err(|_| "not a tiktoken vocabulary")?;
    let mut tokens: Vec<(Vec<u8>, u32)> = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
        let token = entry(line)
            .ok_or_else(|| format!("line {} is not a token in base64 and its rank", number + 1))?;
        refuse_long(&token.0)?;
        tokens.push(token);
    }
    tokens.sort_by_key(|(_, rank)| *rank);
    let ranks: HashMap<&[u8], u32> =
        tokens.iter().map(|(token, rank)| (token.as_slice(), *rank)).collect();
    let letters = byte_letters();
    let spell = |token: &[u8]| token.iter().map(|byte| letters[usize::from(*byte)]).collect();

    let mut vocabulary = Map::new();
    let mut ids = HashMap::with_capacity(tokens.len());
    let mut merges = Vec::new();
    for (token, rank) in &tokens {
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
        first_tokens: Vec::new(),
    })
}
