//! SentencePiece models: the few fields of their protocol buffer that make a tokenizer, and the
//! tokenizers that transformers makes of them.

use crate::convert::{bpe, refuse_long, Parts, Token};
use serde_json::{json, Map, Value as Json};
use std::collections::HashMap;

const UNIGRAM: u64 = 1;
const BPE: u64 = 2;

const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;

struct Piece {
    text: String,
    score: f32,
    kind: u64,
}

pub struct SentencePieces {
    pieces: Vec<Piece>,
    algorithm: u64,
    byte_fallback: bool,
    /// Ids and pieces of the unknown token, BOS and EOS; a negative id: there is none.
    unknown: (i32, String),
    bos: (i32, String),
    eos: (i32, String),
    charsmap: Vec<u8>,
}

enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    Float(f32),
    Other,
}

/// The fields of a message: number and value.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn field(&mut self) -> Option<(u64, Field<'a>)> {
        let key = self.number()?;
        let value = match key & 7 {
            0 => Field::Number(self.number()?),
            1 => self.take(8).map(|_| Field::Other)?,
            2 => {
                let size = self.number()?;
                Field::Bytes(self.take(usize::try_from(size).ok()?)?)
            }
            5 => Field::Float(f32::from_le_bytes(self.take(4)?.try_into().ok()?)),
            _ => return None,
        };
        Some((key >> 3, value))
    }
}

/// Calls `each` with the fields of a message.
fn for_each<'a>(message: &'a [u8], mut each: impl FnMut(u64, Field<'a>)) -> Result<(), String> {
    let mut fields = Fields(message);
    while !fields.0.is_empty() {
        let (number, value) = fields.field().ok_or("not a SentencePiece model, or cut short")?;
        each(number, value);
    }
    Ok(())
}

fn text_of(bytes: &[u8]) -> Result<String, String> {
    Ok(std::str::from_utf8(bytes).map_err(|_| "a piece is not UTF-8")?.to_string())
}

impl SentencePieces {
    pub fn parse(model: &[u8]) -> Result<Self, String> {
        let mut result = Self {
            pieces: Vec::new(),
            algorithm: UNIGRAM,
            byte_fallback: false,
            unknown: (0, "<unk>".into()),
            bos: (1, "<s>".into()),
            eos: (2, "</s>".into()),
            charsmap: Vec::new(),
        };
        let mut messages = Vec::new();
        for_each(model, |number, value| {
            if let Field::Bytes(message) = value {
                messages.push((number, message));
            }
        })?;
        for (number, message) in messages {
            match number {
                1 => result.read_piece(message)?,
                2 => result.read_training(message)?,
                3 => for_each(message, |number, value| {
                    if let (2, Field::Bytes(charsmap)) = (number, value) {
                        result.charsmap = charsmap.to_vec();
                    }
                })?,
                _ => {}
            }
        }
        if result.pieces.is_empty() {
            return Err("a SentencePiece model without pieces".into());
        }
        if ![UNIGRAM, BPE].contains(&result.algorithm) {
            return Err(
                "a SentencePiece model of words or characters; BPE and Unigram are read".into()
            );
        }
        Ok(result)
    }

    fn read_piece(&mut self, message: &[u8]) -> Result<(), String> {
        let (mut text, mut score, mut kind): (&[u8], _, _) = (b"", 0.0, 1);
        for_each(message, |number, value| match (number, value) {
            (1, Field::Bytes(bytes)) => text = bytes,
            (2, Field::Float(number)) => score = number,
            (3, Field::Number(number)) => kind = number,
            _ => {}
        })?;
        refuse_long(text)?;
        self.pieces.push(Piece { text: text_of(text)?, score, kind });
        Ok(())
    }

    fn read_training(&mut self, message: &[u8]) -> Result<(), String> {
        let mut texts = Vec::new();
        for_each(message, |number, value| match (number, value) {
            (3, Field::Number(value)) => self.algorithm = value,
            (35, Field::Number(value)) => self.byte_fallback = value != 0,
            (40, Field::Number(value)) => self.unknown.0 = value as i32,
            (41, Field::Number(value)) => self.bos.0 = value as i32,
            (42, Field::Number(value)) => self.eos.0 = value as i32,
            (45..=47, Field::Bytes(text)) => texts.push((number, text)),
            _ => {}
        })?;
        for (number, text) in texts {
            let token = match number {
                45 => &mut self.unknown,
                46 => &mut self.bos,
                _ => &mut self.eos,
            };
            token.1 = text_of(text)?;
        }
        Ok(())
    }

    /// The special tokens that the model itself names, by their keys in tokenizer_config.json.
    pub fn special_tokens(&self) -> Json {
        let mut tokens = Map::new();
        let named =
            [("bos_token", &self.bos), ("eos_token", &self.eos), ("unk_token", &self.unknown)];
        for (key, (id, text)) in named {
            if *id >= 0 {
                tokens.insert(key.into(), json!(text));
            }
        }
        Json::Object(tokens)
    }

    fn ids(&self) -> HashMap<String, u32> {
        self.pieces.iter().zip(0..).map(|(piece, id)| (piece.text.clone(), id)).collect()
    }

    /// Control tokens and the symbols that whoever trained the model defined.
    fn own_tokens(&self) -> Vec<Token> {
        let own = self.pieces.iter().filter(|piece| [CONTROL, USER_DEFINED].contains(&piece.kind));
        own.map(|piece| Token::new(&piece.text, false, piece.kind == CONTROL)).collect()
    }

    /// The merges that make the pieces: any two pieces whose texts are a third's, in its order.
    fn merges(&self, ids: &HashMap<String, u32>) -> Json {
        let mut merges = Vec::new();
        for piece in &self.pieces {
            for (at, _) in piece.text.char_indices().skip(1) {
                let (left, right) = piece.text.split_at(at);
                if ids.contains_key(left) && ids.contains_key(right) {
                    merges.push(json!([left, right]));
                }
            }
        }
        Json::Array(merges)
    }

    fn refuse_unigram(&self, class: &str) -> Result<(), String> {
        if self.algorithm == BPE {
            return Ok(());
        }
        Err(format!("a Unigram model, and the tokenizer_class {class} is for BPE"))
    }
}

fn vocabulary(ids: &HashMap<String, u32>) -> Json {
    let mut entries: Vec<_> = ids.iter().collect();
    entries.sort_by_key(|(_, id)| **id);
    Json::Object(entries.into_iter().map(|(text, id)| (text.clone(), json!(id))).collect())
}

fn spaces() -> Json {
    json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"})
}

fn decoder(byte_fallback: bool, strip: bool) -> Json {
    let mut steps = vec![json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "})];
    if byte_fallback {
        steps.extend([json!({"type": "ByteFallback"}), json!({"type": "Fuse"})]);
    }
    if strip {
        steps.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    json!({"type": "Sequence", "decoders": steps})
}

/// `scheme`: which pieces of a text get a space before them ("always", "first", "never").
pub fn llama(model: &SentencePieces, scheme: &str) -> Result<Parts, String> {
    model.refuse_unigram("LlamaTokenizer")?;
    let ids = model.ids();
    let options = json!({"fuse_unk": true, "byte_fallback": true});
    Ok(Parts {
        model: bpe(vocabulary(&ids), model.merges(&ids), options),
        normalizer: Json::Null,
        pre_tokenizer: json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme,
                              "split": false}),
        decoder: decoder(true, scheme != "never"),
        post_processor: Json::Null,
        own_tokens: model.own_tokens(),
        first_tokens: Vec::new(),
        ids,
    })
}

pub fn gemma(model: &SentencePieces, unknown: Option<String>) -> Result<Parts, String> {
    model.refuse_unigram("GemmaTokenizer")?;
    let ids = model.ids();
    let options = json!({"unk_token": unknown, "fuse_unk": true, "byte_fallback": true});
    Ok(Parts {
        model: bpe(vocabulary(&ids), model.merges(&ids), options),
        normalizer: spaces(),
        pre_tokenizer: json!({"type": "Split", "pattern": {"String": " "},
                              "behavior": "MergedWithPrevious", "invert": false}),
        decoder: decoder(true, false),
        post_processor: Json::Null,
        own_tokens: model.own_tokens(),
        first_tokens: Vec::new(),
        ids,
    })
}

/// For a model whose files name no class: what the SentencePiece model says, without a space
/// before a text. `renamed`: the texts that tokenizer_config.json has for ids of the vocabulary.
pub fn plain(model: &SentencePieces, renamed: &[(u32, String)]) -> Result<Parts, String> {
    let mut ids = model.ids();
    let tokenizer = if model.algorithm == UNIGRAM {
        let pieces = model.pieces.iter().map(|piece| json!([piece.text, f64::from(piece.score)]));
        json!({"type": "Unigram", "unk_id": model.unknown.0, "vocab": pieces.collect::<Vec<_>>(),
               "byte_fallback": model.byte_fallback})
    } else {
        let merges = model.merges(&ids);
        for (id, text) in renamed {
            let Some(piece) = model.pieces.get(*id as usize) else { continue };
            if piece.text != *text && !ids.contains_key(text) {
                ids.remove(&piece.text);
                ids.insert(text.clone(), *id);
            }
        }
        let options = json!({"unk_token": model.unknown.1, "fuse_unk": true,
                             "byte_fallback": model.byte_fallback});
        bpe(vocabulary(&ids), merges, options)
    };
    let mut normalizers = vec![spaces()];
    if !model.charsmap.is_empty() {
        let map = base64::encode(&model.charsmap);
        normalizers.insert(0, json!({"type": "Precompiled", "precompiled_charsmap": map}));
    }
    Ok(Parts {
        model: tokenizer,
        normalizer: json!({"type": "Sequence", "normalizers": normalizers}),
        pre_tokenizer: Json::Null,
        decoder: decoder(model.byte_fallback, false),
        post_processor: Json::Null,
        own_tokens: model.own_tokens(),
        first_tokens: Vec::new(),
        ids,
    })
}
