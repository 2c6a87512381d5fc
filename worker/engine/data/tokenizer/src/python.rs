//! Python's spelling of values: what `str()`, `repr()` and `json.dumps()` print. Chat templates are
//! written for Jinja2, where these decide the text a model sees.

use crate::memory::text_limit;
use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};
use std::fmt::Write;

/// Values that a template has built may be nested without end; the stack has one.
const MAX_DEPTH: usize = 200;

/// An error where a text of `size` bytes, written at `depth`, is more than the call may write.
fn check(size: usize, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("a value is nested more than {MAX_DEPTH} levels deep"),
        ));
    }
    if size > text_limit() {
        return Err(too_long());
    }
    Ok(())
}

pub fn too_long() -> Error {
    Error::new(
        ErrorKind::InvalidOperation,
        format!("a text of more than {} bytes, too much for its conversation", text_limit()),
    )
}

/// `str(value)`: what `{{ value }}` prints.
pub fn str_of(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(String::new()),
        ValueKind::String => Ok(value.as_str().unwrap_or_default().to_owned()),
        _ => {
            let mut out = String::new();
            write_repr(&mut out, value, 0)?;
            Ok(out)
        }
    }
}

fn write_repr(out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    check(out.len(), depth)?;
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => write_number(out, value)?,
        ValueKind::String => write_string_repr(out, value.as_str().unwrap_or_default()),
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            for (i, item) in value.try_iter()?.enumerate() {
                if i > 0 {
                    out.push_str(", ");
                }
                write_repr(out, &item, depth + 1)?;
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            for (i, key) in value.try_iter()?.enumerate() {
                if i > 0 {
                    out.push_str(", ");
                }
                write_repr(out, &key, depth + 1)?;
                out.push_str(": ");
                write_repr(out, &value.get_item(&key)?, depth + 1)?;
            }
            out.push('}');
        }
        _ => {
            let _ = write!(out, "{value}");
        }
    }
    Ok(())
}

fn write_number(out: &mut String, value: &Value) -> Result<(), Error> {
    if value.is_integer() {
        let _ = write!(out, "{value}");
    } else {
        out.push_str(&float_repr(f64::try_from(value.clone())?));
    }
    Ok(())
}

/// `repr(float)`: the shortest digits that read back equal; exponent form below 1e-4 and from 1e16.
pub fn float_repr(number: f64) -> String {
    if number.is_nan() {
        return "nan".into();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = format!("{number}");
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

fn write_string_repr(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if is_printable(c) => out.push(c),
            c => {
                let code = c as u32;
                let _ = match code {
                    0..=0xff => write!(out, "\\x{code:02x}"),
                    0x100..=0xffff => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(quote);
}

/// `str.isprintable()` of one character. Rust escapes the same categories in `escape_debug`; a
/// leading letter keeps combining marks, which Python prints, from being escaped.
fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return !c.is_ascii_control();
    }
    let text: String = ['a', c].iter().collect();
    !text.escape_debug().skip(1).collect::<String>().starts_with('\\')
}

/// The options of `json.dumps` that templates use.
pub struct JsonStyle {
    pub indent: Option<String>,
    pub item_separator: String,
    pub key_separator: String,
    pub sort_keys: bool,
    pub ensure_ascii: bool,
}

/// `json.dumps(value, ...)`.
pub fn json_of(value: &Value, style: &JsonStyle) -> Result<String, Error> {
    let mut out = String::new();
    write_json(&mut out, value, style, 0)?;
    Ok(out)
}

fn write_json(
    out: &mut String,
    value: &Value,
    style: &JsonStyle,
    depth: usize,
) -> Result<(), Error> {
    check(out.len(), depth)?;
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => write_json_number(out, value)?,
        ValueKind::String => {
            write_json_string(out, value.as_str().unwrap_or_default(), style.ensure_ascii)
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            write_json_block(out, style, depth, ['[', ']'], items.len(), |out, i| {
                write_json(out, &items[i], style, depth + 1)
            })?;
        }
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            if style.sort_keys {
                keys.sort();
            }
            write_json_block(out, style, depth, ['{', '}'], keys.len(), |out, i| {
                write_json_key(out, &keys[i], style, depth + 1)?;
                out.push_str(&style.key_separator);
                write_json(out, &value.get_item(&keys[i])?, style, depth + 1)
            })?;
        }
        kind => {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("tojson: a value of type {kind} has no JSON form"),
            ))
        }
    }
    Ok(())
}

fn write_json_number(out: &mut String, value: &Value) -> Result<(), Error> {
    let start = out.len();
    write_number(out, value)?;
    let spelling = match &out[start..] {
        "nan" => "NaN",
        "inf" => "Infinity",
        "-inf" => "-Infinity",
        _ => return Ok(()),
    };
    out.truncate(start);
    out.push_str(spelling);
    Ok(())
}

fn write_json_key(
    out: &mut String,
    key: &Value,
    style: &JsonStyle,
    depth: usize,
) -> Result<(), Error> {
    if let Some(text) = key.as_str() {
        write_json_string(out, text, style.ensure_ascii);
        return Ok(());
    }
    out.push('"');
    write_json(out, key, style, depth)?;
    out.push('"');
    Ok(())
}

fn write_json_block(
    out: &mut String,
    style: &JsonStyle,
    depth: usize,
    brackets: [char; 2],
    count: usize,
    mut write_item: impl FnMut(&mut String, usize) -> Result<(), Error>,
) -> Result<(), Error> {
    let new_line = |out: &mut String, depth: usize| -> Result<(), Error> {
        if let Some(indent) = &style.indent {
            check(out.len().saturating_add(indent.len().saturating_mul(depth)), depth)?;
            out.push('\n');
            out.push_str(&indent.repeat(depth));
        }
        Ok(())
    };
    out.push(brackets[0]);
    for i in 0..count {
        if i > 0 {
            out.push_str(&style.item_separator);
        }
        new_line(out, depth + 1)?;
        write_item(out, i)?;
    }
    if count > 0 {
        new_line(out, depth)?;
    }
    out.push(brackets[1]);
    Ok(())
}

fn write_json_string(out: &mut String, text: &str, ensure_ascii: bool) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 || (ensure_ascii && !(' '..='~').contains(&c)) => {
                let mut units = [0u16; 2];
                for unit in c.encode_utf16(&mut units) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}
