//! tokenizer.json, opened so that offsets are exact and nothing adds tokens behind the template.

use crate::memory::Budget;
use serde_json::{json, Value as Json};
use tokenizers::tokenizer::{OffsetReferential, OffsetType};
use tokenizers::{PostProcessorWrapper, Tokenizer as HfTokenizer};

/// Memory that a call may take for each byte of its text, and in any case. A text of letters takes
/// about 300 bytes for each.
const MEMORY_FACTOR: usize = 2048;
const FREE_MEMORY: usize = 256 << 20;

/// The same for opening a tokenizer.json, which is parsed twice.
const OPEN_FACTOR: usize = 64;
const OPEN_MEMORY: usize = 512 << 20;

fn budget(bytes: usize) -> Budget {
    Budget::new("the tokenizer", FREE_MEMORY.saturating_add(bytes.saturating_mul(MEMORY_FACTOR)))
}

pub struct Tokenizer {
    tokenizer: HfTokenizer,
    /// Knows no added tokens but those of whitespace: others are ordinary text to it.
    plain: HfTokenizer,
    prefix: Vec<u32>,
    suffix: Vec<u32>,
}

pub struct Encoded {
    pub ids: Vec<i32>,
    pub starts: Vec<u32>,
    pub ends: Vec<u32>,
}

impl Tokenizer {
    pub fn open(json: &str) -> Result<Self, String> {
        let _budget = Budget::new(
            "the tokenizer",
            OPEN_MEMORY.saturating_add(json.len().saturating_mul(OPEN_FACTOR)),
        );
        let mut tokenizer = HfTokenizer::from_bytes(json).map_err(|e| e.to_string())?;
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(|e| e.to_string())?;
        let (prefix, suffix) = added_around(&tokenizer)?;
        tokenizer.with_post_processor(None::<PostProcessorWrapper>);

        let mut description: Json = serde_json::from_str(json).map_err(|e| e.to_string())?;
        if let Some(added) = description.get_mut("added_tokens").and_then(Json::as_array_mut) {
            added.retain(|token| {
                token["content"].as_str().is_some_and(|text| text.trim().is_empty())
            });
        }
        description["post_processor"] = Json::Null;
        description["truncation"] = Json::Null;
        description["padding"] = Json::Null;
        let plain = HfTokenizer::from_bytes(description.to_string()).map_err(|e| e.to_string())?;
        Ok(Self { tokenizer, plain, prefix, suffix })
    }

    pub fn encode(&self, text: &str, plain: bool) -> Result<Encoded, String> {
        if text.len() > u32::MAX as usize {
            return Err("a text of more than 4 GiB".into());
        }
        let _budget = budget(text.len());
        let tokenizer = if plain { &self.plain } else { &self.tokenizer };
        // `encode` gives byte offsets; `encode_fast` gives none.
        let encoding = tokenizer.encode(text, false).map_err(|e| e.to_string())?;
        Ok(Encoded {
            ids: encoding.get_ids().iter().map(|id| *id as i32).collect(),
            starts: encoding.get_offsets().iter().map(|span| span.0 as u32).collect(),
            ends: encoding.get_offsets().iter().map(|span| span.1 as u32).collect(),
        })
    }

    pub fn decode(&self, ids: &[i32], skip_special: bool) -> Result<String, String> {
        let _budget = budget(ids.len());
        let ids: Vec<u32> = ids.iter().map(|id| *id as u32).collect();
        self.tokenizer.decode(&ids, skip_special).map_err(|e| e.to_string())
    }

    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }

    /// Ids of the added tokens that `encode` would find in `text`, by the same matcher.
    pub fn added_tokens_in(&self, text: &str) -> Vec<i32> {
        let _budget = budget(text.len());
        let vocabulary = self.tokenizer.get_added_vocabulary();
        let found = vocabulary.extract_and_normalize(self.tokenizer.get_normalizer(), text);
        found
            .get_splits(OffsetReferential::Original, OffsetType::None)
            .iter()
            .filter_map(|(_, _, tokens)| tokens.as_ref())
            .flatten()
            .map(|token| token.id as i32)
            .collect()
    }

    pub fn describe(&self) -> String {
        let mut added: Vec<_> = self.tokenizer.get_added_tokens_decoder().into_iter().collect();
        added.sort_by_key(|(id, _)| *id);
        let vocabulary = self.tokenizer.get_vocab(true);
        let longest = vocabulary.keys().map(|text| text.len()).max();
        let largest = vocabulary.into_values().max();
        let added: Vec<Json> = added
            .into_iter()
            .map(|(id, token)| json!({"id": id, "special": token.special, "text": token.content}))
            .collect();
        json!({
            "added_tokens": added,
            "longest_token": longest.unwrap_or(0),
            "prefix": self.prefix,
            "suffix": self.suffix,
            "vocabulary_size": largest.map_or(0, |id| id + 1),
        })
        .to_string()
    }
}

/// What the post-processor puts before and after a text.
fn added_around(tokenizer: &HfTokenizer) -> Result<(Vec<u32>, Vec<u32>), String> {
    let encoding = tokenizer.encode("a", true).map_err(|e| e.to_string())?;
    let (ids, mask) = (encoding.get_ids(), encoding.get_special_tokens_mask());
    let before = mask.iter().take_while(|special| **special == 1).count();
    let after = mask.iter().rev().take_while(|special| **special == 1).count();
    if before == ids.len() {
        return Ok((Vec::new(), Vec::new()));
    }
    Ok((ids[..before].to_vec(), ids[ids.len() - after..].to_vec()))
}
