//! Chat templates with the settings under which minijinja prints what Jinja2 prints.

use crate::memory::{text_limit, Budget};
use crate::python::{json_of, str_of, too_long, JsonStyle};
use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind};
use serde_json::{Map, Value as Json};
use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

/// Steps of the template machine for one conversation; a second's work, far above real templates.
const FUEL: u64 = 20_000_000;

/// A conversation's text may be so long, and as long as four templates and eight times the row: a
/// template prints its own words once or twice and each message escaped, often twice.
const FREE_TEXT: usize = 1 << 20;
/// Memory that rendering may take for each byte that the text may have, and in any case.
const MEMORY_FACTOR: usize = 64;
const FREE_MEMORY: usize = 64 << 20;

// Noncharacters that mark {% generation %} blocks in the rendered text and are removed from it.
const OPEN: char = '\u{fdd0}';
const CLOSE: char = '\u{fdd1}';

pub struct ChatTemplate {
    environment: Environment<'static>,
    source_size: usize,
    variables: Map<String, Json>,
    marks_generation: bool,
}

pub struct Rendered {
    pub text: String,
    /// Byte ranges of `text` inside {% generation %} blocks.
    pub generation: Vec<(usize, usize)>,
}

impl ChatTemplate {
    /// `variables` is a JSON object: bos_token, eos_token, ..., what else the template is given
    /// under `arguments`, and `date` ("YYYY-MM-DD"; empty: each rendering has its own day, in UTC).
    pub fn compile(source: &str, variables: &str) -> Result<Self, String> {
        let mut variables: Map<String, Json> =
            serde_json::from_str(variables).map_err(|e| e.to_string())?;
        let date = match variables.remove("date").as_ref().and_then(Json::as_str) {
            None | Some("") => None,
            Some(text) => Some(Date::parse(text)?),
        };
        match variables.remove("arguments") {
            None | Some(Json::Null) => (),
            Some(Json::Object(arguments)) => variables.extend(arguments),
            Some(_) => return Err("the template's arguments must be a JSON object".into()),
        }
        let source_size = source.len();
        let _budget =
            Budget::new("the chat template", FREE_MEMORY.saturating_add(source_size * 1024));
        let (source, marks_generation) = rewrite_generation(source);
        let mut environment = make_environment(date);
        environment.add_template_owned("chat_template", source).map_err(|e| describe(&e))?;
        Ok(Self { environment, source_size, variables, marks_generation })
    }

    /// `tools` and `variables` may be empty.
    pub fn render(
        &self,
        messages: &str,
        tools: &str,
        variables: &str,
        add_generation_prompt: bool,
    ) -> Result<Rendered, String> {
        let row_size = messages.len() + tools.len() + variables.len();
        let limit = FREE_TEXT + 4 * self.source_size + 8 * row_size;
        let _budget = Budget::new("the chat template", FREE_MEMORY + MEMORY_FACTOR * limit)
            .with_text_limit(limit);
        let messages = parse(messages)?;
        // Looping over a reversed empty list panics in minijinja.
        if messages.as_array().map_or(true, |list| list.is_empty()) {
            return Err("the conversation has no messages".into());
        }
        let tools = if tools.is_empty() { Json::Null } else { parse(tools)? };
        let mut context = self.variables.clone();
        if !variables.is_empty() {
            match parse(variables)? {
                Json::Object(more) => context.extend(more),
                _ => return Err("template variables must be a JSON object".into()),
            }
        }
        context.insert("messages".into(), messages);
        context.insert("tools".into(), tools);
        // transformers passes None, so `documents is defined` holds.
        context.entry("documents").or_insert(Json::Null);
        context.insert("add_generation_prompt".into(), add_generation_prompt.into());
        if self.marks_generation && holds_marks(&context) {
            return Err("the conversation holds the noncharacters U+FDD0 or U+FDD1".into());
        }
        let template = self.environment.get_template("chat_template").map_err(|e| describe(&e))?;
        let mut out = BoundedText(Vec::new());
        template
            .render_captured_to(Value::from_serialize(&context), &mut out)
            .map_err(|e| describe(&e))?;
        let text = String::from_utf8(out.0).map_err(|e| e.to_string())?;
        if self.marks_generation {
            return take_marks(&text);
        }
        Ok(Rendered { text, generation: Vec::new() })
    }
}

/// A text that fails beyond the limit of its call.
struct BoundedText(Vec<u8>);

impl io::Write for BoundedText {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > text_limit() {
            return Err(io::Error::other(too_long()));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn parse(json: &str) -> Result<Json, String> {
    serde_json::from_str(json).map_err(|e| e.to_string())
}

fn holds_marks(context: &Map<String, Json>) -> bool {
    serde_json::to_string(context).is_ok_and(|text| text.contains([OPEN, CLOSE]))
}

fn take_marks(marked: &str) -> Result<Rendered, String> {
    let mut text = String::with_capacity(marked.len());
    let mut generation = Vec::new();
    let mut open = None;
    for c in marked.chars() {
        match (c, open) {
            (OPEN, None) => open = Some(text.len()),
            (CLOSE, Some(begin)) => {
                generation.push((begin, text.len()));
                open = None;
            }
            (OPEN | CLOSE, _) => return Err("{% generation %} blocks are nested".into()),
            (c, _) => text.push(c),
        }
    }
    Ok(Rendered { text, generation })
}

fn describe(error: &Error) -> String {
    let message = match (error.kind(), error.detail()) {
        // The only writer is BoundedText.
        (ErrorKind::WriteFailure, _) => too_long().detail().unwrap_or_default().to_owned(),
        (ErrorKind::OutOfFuel, _) => "it takes too many steps: does a loop never end?".to_owned(),
        (_, Some(detail)) => detail.to_owned(),
        (kind, None) => kind.to_string(),
    };
    match error.line() {
        Some(line) => format!("{message} (template line {line})"),
        None => message,
    }
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

fn make_environment(date: Option<Date>) -> Environment<'static> {
    let mut env = Environment::new();
    env.set_trim_blocks(true);
    env.set_lstrip_blocks(true);
    env.set_fuel(Some(FUEL));
    env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    env.set_formatter(|out, _state, value| {
        let text = str_of(value)?;
        out.write_str(&text).map_err(Error::from)
    });
    env.add_filter("tojson", tojson);
    env.add_filter("string", |value: &Value| str_of(value));
    env.add_filter("__generation", |block: &str| format!("{OPEN}{block}{CLOSE}"));
    // Jinja2's Undefined iterates as an empty list; None does not iterate.
    env.add_test("iterable", |value: &Value| is_container(value) || value.is_undefined());
    env.add_test("sequence", |value: &Value| {
        (is_container(value) && value.kind() != ValueKind::Iterable) || value.is_undefined()
    });
    env.add_function("raise_exception", |message: &Value| -> Result<Value, Error> {
        Err(invalid(str_of(message)?))
    });
    env.add_function("strftime_now", move |format: &str| {
        date.unwrap_or_else(Date::today).format(format).map_err(invalid)
    });
    env
}

fn is_container(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Iterable
    )
}

/// transformers' `tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
fn tojson(value: &Value, positional: Rest<Value>, named: Kwargs) -> Result<Value, Error> {
    let argument = |index: usize, name: &str| -> Result<Value, Error> {
        let value = match positional.get(index) {
            Some(value) => value.clone(),
            None => named.get::<Option<Value>>(name)?.unwrap_or_default(),
        };
        Ok(value)
    };
    let ensure_ascii = argument(0, "ensure_ascii")?;
    let indent = argument(1, "indent")?;
    let separators = argument(2, "separators")?;
    let sort_keys = argument(3, "sort_keys")?;
    named.assert_all_used()?;
    let indent = match indent.kind() {
        ValueKind::Undefined | ValueKind::None => None,
        ValueKind::String => Some(str_of(&indent)?),
        ValueKind::Bool => Some(" ".repeat(usize::from(indent.is_true()))),
        _ => match usize::try_from(indent)? {
            width if width > text_limit() => return Err(too_long()),
            width => Some(" ".repeat(width)),
        },
    };
    let mut style = JsonStyle {
        item_separator: if indent.is_some() { ",".into() } else { ", ".into() },
        key_separator: ": ".into(),
        indent,
        sort_keys: sort_keys.is_true(),
        ensure_ascii: ensure_ascii.is_true(),
    };
    if matches!(separators.kind(), ValueKind::Seq | ValueKind::Iterable) {
        let parts: Vec<Value> = separators.try_iter()?.collect();
        let [item, key] = parts.as_slice() else {
            return Err(invalid("tojson: separators must be a pair"));
        };
        style.item_separator = str_of(item)?;
        style.key_separator = str_of(key)?;
    }
    Ok(Value::from_safe_string(json_of(value, &style)?))
}

/// `{%- generation -%}` becomes `{%- filter __generation -%}`; minijinja has no such statement.
fn rewrite_generation(source: &str) -> (String, bool) {
    let mut out = String::with_capacity(source.len());
    let mut found = false;
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start..].find("%}") else { break };
        let (before, tag) = (&rest[..start], &rest[start + 2..start + length]);
        let strip_left = tag.chars().next().filter(|c| "-+".contains(*c));
        let strip_right = tag.chars().last().filter(|c| "-+".contains(*c));
        let statement = match tag.trim_matches(|c: char| c.is_whitespace() || "-+".contains(c)) {
            "generation" => Some("filter __generation"),
            "endgeneration" => Some("endfilter"),
            _ => None,
        };
        out.push_str(before);
        match statement {
            Some(statement) => {
                found = true;
                out.push_str("{%");
                out.extend(strip_left);
                out.push(' ');
                out.push_str(statement);
                out.push(' ');
                out.extend(strip_right);
                out.push_str("%}");
            }
            None => out.push_str(&rest[start..start + length + 2]),
        }
        rest = &rest[start + length + 2..];
    }
    out.push_str(rest);
    (out, found)
}

#[derive(Clone, Copy)]
struct Date {
    year: i32,
    month: u32,
    day: u32,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

impl Date {
    fn parse(text: &str) -> Result<Self, String> {
        let bad = || format!("date {text:?} is not YYYY-MM-DD");
        let parts: Vec<u32> = text.split('-').map_while(|part| part.parse().ok()).collect();
        match parts[..] {
            [year, month @ 1..=12, day @ 1..=31] => Ok(Self { year: year as i32, month, day }),
            _ => Err(bad()),
        }
    }

    /// The day now in UTC.
    fn today() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::after_epoch((now.as_secs() / 86_400) as i64)
    }

    /// The day that is `days` after 1970-01-01. Years begin in March and come in cycles of 400.
    fn after_epoch(days: i64) -> Self {
        const CYCLE: i64 = 146_097;
        let days = days + 719_468;
        let of_cycle = days.rem_euclid(CYCLE);
        let of_years = (of_cycle - of_cycle / 1460 + of_cycle / 36_524 - of_cycle / 146_096) / 365;
        let of_year = of_cycle - (365 * of_years + of_years / 4 - of_years / 100);
        let month = (5 * of_year + 2) / 153;
        let day = of_year - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        let year = of_years + days.div_euclid(CYCLE) * 400 + i64::from(month <= 2);
        Self { year: year as i32, month: month as u32, day: day as u32 }
    }

    /// 0 is Sunday (Sakamoto's method).
    fn weekday(&self) -> usize {
        const SHIFT: [i32; 12] = [0, 3, 2, 5, 0, 3, 5, 1, 4, 6, 2, 4];
        let year = if self.month < 3 { self.year - 1 } else { self.year };
        let days = year + year / 4 - year / 100 + year / 400;
        (days + SHIFT[self.month as usize - 1] + self.day as i32).rem_euclid(7) as usize
    }

    /// The directives of strftime that have no time zone; midnight.
    fn format(&self, format: &str) -> Result<String, String> {
        let mut out = String::new();
        let mut chars = format.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            let mut directive = chars.next().unwrap_or('%');
            let padded = directive != '-';
            if !padded {
                directive = chars.next().unwrap_or('%');
            }
            let number =
                |value: u32| if padded { format!("{value:02}") } else { value.to_string() };
            let month = MONTHS[self.month as usize - 1];
            let day = DAYS[self.weekday()];
            out.push_str(&match directive {
                'Y' => self.year.to_string(),
                'y' => number((self.year % 100) as u32),
                'm' => number(self.month),
                'd' => number(self.day),
                'B' => month.into(),
                'b' | 'h' => month[..3].into(),
                'A' => day.into(),
                'a' => day[..3].into(),
                'H' | 'M' | 'S' => number(0),
                'I' => "12".into(),
                'p' => "AM".into(),
                'F' => format!("{}-{:02}-{:02}", self.year, self.month, self.day),
                '%' => "%".into(),
                other => return Err(format!("strftime_now: %{other} is not supported")),
            });
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUESTION: &str = r#"[{"role": "user", "content": "hi"}]"#;

    fn render(source: &str, variables: &str, of_row: &str) -> Result<String, String> {
        let template = ChatTemplate::compile(source, variables)?;
        template.render(QUESTION, "", of_row, false).map(|rendered| rendered.text)
    }

    #[test]
    fn a_given_date_is_the_one_that_the_template_prints() {
        let source = "{{ strftime_now('%Y-%m-%d %A') }}";
        let text = render(source, r#"{"date": "2026-11-26"}"#, "");
        assert_eq!(text.unwrap(), "2026-11-26 Thursday");
        assert!(render(source, r#"{"date": "26.11.2026"}"#, "").is_err());
    }

    #[test]
    fn without_a_date_each_rendering_has_its_own_day() {
        let before = Date::today();
        let text = render("{{ strftime_now('%F') }}", "{}", "").unwrap();
        let after = Date::today();
        assert!([before, after].iter().any(|day| day.format("%F").unwrap() == text), "{text}");
    }

    #[test]
    fn days_after_the_epoch_are_those_of_the_calendar() {
        for (days, text) in [
            (0, "1970-01-01 Thursday"),
            (11_016, "2000-02-29 Tuesday"),
            (19_782, "2024-02-29 Thursday"),
            (20_783, "2026-11-26 Thursday"),
            (47_540, "2100-02-28 Sunday"),
            (47_541, "2100-03-01 Monday"),
        ] {
            assert_eq!(Date::after_epoch(days).format("%F %A").unwrap(), text);
        }
    }

    #[test]
    fn arguments_reach_the_template_and_those_of_a_row_go_before_them() {
        let source = "{{ reasoning_effort }} {{ enable_thinking is false }} {{ date }}";
        let variables = r#"{"date": "2026-11-26", "arguments":
            {"reasoning_effort": "high", "enable_thinking": false, "date": "theirs"}}"#;
        assert_eq!(render(source, variables, "").unwrap(), "high True theirs");
        let of_row = r#"{"reasoning_effort": "low"}"#;
        assert_eq!(render(source, variables, of_row).unwrap(), "low True theirs");
        assert!(render(source, r#"{"arguments": ["high"]}"#, "").is_err());
    }
}
