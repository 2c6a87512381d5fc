//! C interface of tokenizers and minijinja (ffi.h is its other half) and of HTTP (common/hub/http.cc). No panic crosses it: each
//! entry catches them and returns an error.

mod convert;
mod http;
mod memory;
mod python;
mod sentencepiece;
mod template;
mod tiktoken;
mod tokenizer;

use std::os::raw::c_void;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Once;

use template::ChatTemplate;
use tokenizer::Tokenizer;

/// What an entry returns, or its error text. Owned by the caller: sft_result_free.
#[repr(C)]
pub struct SftResult {
    pub ok: i32,
    pub text: *const u8,
    pub text_size: usize,
    pub ids: *const i32,
    pub ids_size: usize,
    /// Spans: of the ids when there are any, of generation blocks of a rendered text.
    pub starts: *const u32,
    pub ends: *const u32,
    pub spans_size: usize,
    owner: *mut c_void,
}

#[derive(Default)]
struct Payload {
    text: String,
    ids: Vec<i32>,
    starts: Vec<u32>,
    ends: Vec<u32>,
}

fn into_result(outcome: Result<Payload, String>) -> SftResult {
    let ok = i32::from(outcome.is_ok());
    let payload = outcome.unwrap_or_else(|error| Payload { text: error, ..Payload::default() });
    let owner = Box::new(payload);
    SftResult {
        ok,
        text: owner.text.as_ptr(),
        text_size: owner.text.len(),
        ids: owner.ids.as_ptr(),
        ids_size: owner.ids.len(),
        starts: owner.starts.as_ptr(),
        ends: owner.ends.as_ptr(),
        spans_size: owner.starts.len(),
        owner: Box::into_raw(owner).cast(),
    }
}

static QUIET: Once = Once::new();

/// Runs `work`; a panic becomes an error text instead of lines on stderr.
fn guarded(work: impl FnOnce() -> Result<Payload, String>) -> SftResult {
    QUIET.call_once(|| std::panic::set_hook(Box::new(|_| {})));
    let outcome = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let message = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string()));
        Err(format!("panic: {}", message.unwrap_or_else(|| "unknown".into())))
    });
    into_result(outcome)
}

/// # Safety
/// `data` points to `size` readable bytes (any pointer when `size` is 0).
unsafe fn bytes_of<'a>(data: *const u8, size: usize) -> &'a [u8] {
    if size == 0 {
        return &[];
    }
    std::slice::from_raw_parts(data, size)
}

/// # Safety
/// As bytes_of.
unsafe fn text_of<'a>(data: *const u8, size: usize) -> Result<&'a str, String> {
    std::str::from_utf8(bytes_of(data, size))
        .map_err(|error| format!("not UTF-8 at byte {}", error.valid_up_to()))
}

/// Says how the process ends where a call takes more memory than it may, or the system has none.
#[no_mangle]
pub extern "C" fn sft_set_memory_handler(handler: Option<memory::Handler>) {
    memory::set_handler(handler);
}

/// # Safety
/// `result` came from an entry of this library and is not used afterwards.
#[no_mangle]
pub unsafe extern "C" fn sft_result_free(result: *mut SftResult) {
    let owner = std::mem::replace(&mut (*result).owner, std::ptr::null_mut());
    if !owner.is_null() {
        drop(Box::from_raw(owner.cast::<Payload>()));
    }
}

/// # Safety
/// `json` points to `size` bytes; `out` receives the tokenizer when the result is ok.
#[no_mangle]
pub unsafe extern "C" fn sft_tokenizer_open(
    json: *const u8,
    size: usize,
    out: *mut *mut Tokenizer,
) -> SftResult {
    guarded(|| {
        let tokenizer = Tokenizer::open(text_of(json, size)?)?;
        let text = tokenizer.describe();
        *out = Box::into_raw(Box::new(tokenizer));
        Ok(Payload { text, ..Payload::default() })
    })
}

/// The tokenizer.json that the files of a model make: a vocabulary (vocab.json, a SentencePiece model
/// or a tiktoken file) and, for vocab.json, merges.txt. `request`: what convert::Request reads.
///
/// # Safety
/// `request`, `vocabulary` and `merges` point to as many bytes as their sizes say.
#[no_mangle]
pub unsafe extern "C" fn sft_tokenizer_convert(
    request: *const u8,
    request_size: usize,
    vocabulary: *const u8,
    vocabulary_size: usize,
    merges: *const u8,
    merges_size: usize,
) -> SftResult {
    guarded(|| {
        let text = convert::convert(
            text_of(request, request_size)?,
            bytes_of(vocabulary, vocabulary_size),
            bytes_of(merges, merges_size),
        )?;
        Ok(Payload { text, ..Payload::default() })
    })
}

/// # Safety
/// `tokenizer` came from sft_tokenizer_open and is not used afterwards.
#[no_mangle]
pub unsafe extern "C" fn sft_tokenizer_close(tokenizer: *mut Tokenizer) {
    drop(Box::from_raw(tokenizer));
}

/// # Safety
/// `tokenizer` is open; `text` points to `size` bytes.
#[no_mangle]
pub unsafe extern "C" fn sft_tokenizer_encode(
    tokenizer: *const Tokenizer,
    text: *const u8,
    size: usize,
    plain: i32,
) -> SftResult {
    guarded(|| {
        let encoded = (*tokenizer).encode(text_of(text, size)?, plain != 0)?;
        Ok(Payload {
            ids: encoded.ids,
            starts: encoded.starts,
            ends: encoded.ends,
            ..Payload::default()
        })
    })
}

/// # Safety
/// `tokenizer` is open; `ids` points to `size` integers.
#[no_mangle]
pub unsafe extern "C" fn sft_tokenizer_decode(
    tokenizer: *const Tokenizer,
    ids: *const i32,
    size: usize,
    skip_special: i32,
) -> SftResult {
    guarded(|| {
        let ids = if size == 0 { &[] } else { std::slice::from_raw_parts(ids, size) };
        let text = (*tokenizer).decode(ids, skip_special != 0)?;
        Ok(Payload { text, ..Payload::default() })
    })
}

/// The id of a token by its text: one id, or none.
///
/// # Safety
/// `tokenizer` is open; `text` points to `size` bytes.
#[no_mangle]
pub unsafe extern "C" fn sft_tokenizer_token_id(
    tokenizer: *const Tokenizer,
    text: *const u8,
    size: usize,
) -> SftResult {
    guarded(|| {
        let id = (*tokenizer).token_id(text_of(text, size)?);
        Ok(Payload { ids: id.into_iter().map(|id| id as i32).collect(), ..Payload::default() })
    })
}

/// The added tokens that encoding `text` would find.
///
/// # Safety
/// `tokenizer` is open; `text` points to `size` bytes.
#[no_mangle]
pub unsafe extern "C" fn sft_tokenizer_added_in(
    tokenizer: *const Tokenizer,
    text: *const u8,
    size: usize,
) -> SftResult {
    guarded(|| {
        let ids = (*tokenizer).added_tokens_in(text_of(text, size)?);
        Ok(Payload { ids, ..Payload::default() })
    })
}

/// # Safety
/// The texts point to as many bytes as their sizes say; `out` receives the template when ok.
#[no_mangle]
pub unsafe extern "C" fn sft_template_compile(
    source: *const u8,
    source_size: usize,
    variables: *const u8,
    variables_size: usize,
    out: *mut *mut ChatTemplate,
) -> SftResult {
    guarded(|| {
        let template = ChatTemplate::compile(
            text_of(source, source_size)?,
            text_of(variables, variables_size)?,
        )?;
        *out = Box::into_raw(Box::new(template));
        Ok(Payload::default())
    })
}

/// # Safety
/// `template` came from sft_template_compile and is not used afterwards.
#[no_mangle]
pub unsafe extern "C" fn sft_template_close(template: *mut ChatTemplate) {
    drop(Box::from_raw(template));
}

/// # Safety
/// `template` is open; the texts point to as many bytes as their sizes say.
#[no_mangle]
pub unsafe extern "C" fn sft_template_render(
    template: *const ChatTemplate,
    messages: *const u8,
    messages_size: usize,
    tools: *const u8,
    tools_size: usize,
    variables: *const u8,
    variables_size: usize,
    add_generation_prompt: i32,
) -> SftResult {
    guarded(|| {
        let rendered = (*template).render(
            text_of(messages, messages_size)?,
            text_of(tools, tools_size)?,
            text_of(variables, variables_size)?,
            add_generation_prompt != 0,
        )?;
        let (starts, ends) =
            rendered.generation.iter().map(|(begin, end)| (*begin as u32, *end as u32)).unzip();
        Ok(Payload { text: rendered.text, starts, ends, ..Payload::default() })
    })
}

/// # Safety
/// `options` points to `size` bytes; `out` receives the agent when the result is ok.
#[no_mangle]
pub unsafe extern "C" fn sft_http_open(
    options: *const u8,
    size: usize,
    out: *mut *mut http::Agent,
) -> SftResult {
    guarded(|| {
        let agent = http::Agent::open(text_of(options, size)?)?;
        *out = Box::into_raw(Box::new(agent));
        Ok(Payload::default())
    })
}

/// # Safety
/// `agent` came from sft_http_open and is not used afterwards.
#[no_mangle]
pub unsafe extern "C" fn sft_http_close(agent: *mut http::Agent) {
    drop(Box::from_raw(agent));
}

/// # Safety
/// `agent` is open; `request` points to `size` bytes; `fill` is null or hands out the request's body, with `context`,
/// until the call returns; `out` receives the answer's body when the result is ok.
#[no_mangle]
pub unsafe extern "C" fn sft_http_send(
    agent: *const http::Agent,
    request: *const u8,
    size: usize,
    fill: Option<http::Fill>,
    context: *mut std::ffi::c_void,
    out: *mut *mut http::Body,
) -> SftResult {
    guarded(|| {
        let upload = fill.map(|fill| http::Upload { fill, context });
        let (text, body) = (*agent).send(text_of(request, size)?, upload)?;
        *out = Box::into_raw(Box::new(body));
        Ok(Payload { text, ..Payload::default() })
    })
}

/// # Safety
/// `body` is open; `buffer` has room for `size` bytes; `count` receives how many were written.
#[no_mangle]
pub unsafe extern "C" fn sft_http_read(
    body: *mut http::Body,
    buffer: *mut u8,
    size: usize,
    count: *mut usize,
) -> SftResult {
    guarded(|| {
        // A buffer of C++ whose bytes nobody has written yet is filled before it is read.
        std::ptr::write_bytes(buffer, 0, size);
        *count = (*body).read(std::slice::from_raw_parts_mut(buffer, size))?;
        Ok(Payload::default())
    })
}

/// # Safety
/// `body` came from sft_http_send and is not used afterwards.
#[no_mangle]
pub unsafe extern "C" fn sft_http_body_close(body: *mut http::Body) {
    drop(Box::from_raw(body));
}
