//! HTTP for the hub client (common/hub/http.cc is its other half): a request, the head of its answer,
//! and the body in pieces. Redirects are not followed and nothing is tried again: who holds a token
//! decides that.

use std::ffi::c_void;
use std::io::{ErrorKind, Read};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::CertificateDer;
use serde_json::{json, Value};

/// A read returns what has come in this time, so that whoever counts bytes sees them come.
const PATIENCE: Duration = Duration::from_millis(100);

pub struct Agent(ureq::Agent);

pub struct Body {
    reader: Box<dyn Read + Send + Sync + 'static>,
    /// What broke the body after bytes that the last read returned.
    broken: Option<String>,
}

/// Fills a buffer with the next bytes of a request's body and says how many; less than 0: there are none to be had.
pub type Fill = unsafe extern "C" fn(*mut c_void, *mut u8, usize) -> i64;

/// A request's body, which the caller hands out piece by piece.
pub struct Upload {
    pub fill: Fill,
    pub context: *mut c_void,
}

impl Read for Upload {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        // SAFETY: the caller keeps `context` while the request is sent, and writes within the buffer.
        let count = unsafe { (self.fill)(self.context, buffer.as_mut_ptr(), buffer.len()) };
        match usize::try_from(count) {
            Ok(count) if count <= buffer.len() => Ok(count),
            _ => Err(std::io::Error::other("the body to be sent cannot be read")),
        }
    }
}

fn text<'a>(options: &'a Value, key: &str) -> &'a str {
    options[key].as_str().unwrap_or("")
}

fn seconds(options: &Value, key: &str) -> Result<Duration, String> {
    let value = options[key].as_f64().filter(|value| *value > 0.0);
    value.map(Duration::from_secs_f64).ok_or_else(|| format!("permanent: {key} is missing"))
}

/// The certificates of a PEM file instead of those that the library brings.
fn trust(file: &str) -> Result<ureq::rustls::ClientConfig, String> {
    let broken = |why: String| format!("permanent: cannot read the certificates of {file}: {why}");
    let bytes = std::fs::read(file).map_err(|error| broken(error.to_string()))?;
    let mut roots = ureq::rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&bytes) {
        let certificate = certificate.map_err(|error| broken(error.to_string()))?;
        // Systems keep certificates that no longer follow the rules among the others.
        let _ = roots.add(certificate);
    }
    if roots.is_empty() {
        return Err(broken("there are none in it".into()));
    }
    let provider = Arc::new(ureq::rustls::crypto::ring::default_provider());
    Ok(ureq::rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| broken(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth())
}

impl Agent {
    pub fn open(options: &str) -> Result<Self, String> {
        let options: Value = serde_json::from_str(options).map_err(|error| error.to_string())?;
        let stall = seconds(&options, "stall_seconds")?;
        let mut builder = ureq::AgentBuilder::new()
            .redirects(0)
            .timeout_connect(seconds(&options, "connect_seconds")?)
            .timeout_read(stall)
            .timeout_write(stall)
            .user_agent(text(&options, "user_agent"));
        if !text(&options, "ca_file").is_empty() {
            builder = builder.tls_config(Arc::new(trust(text(&options, "ca_file"))?));
        }
        if let Some(total) = options["total_seconds"].as_f64().filter(|value| *value > 0.0) {
            builder = builder.timeout(Duration::from_secs_f64(total));
        }
        if !text(&options, "address").is_empty() {
            // Who has checked an address connects to that one: the name could lead elsewhere by now.
            let address: std::net::SocketAddr = text(&options, "address")
                .parse()
                .map_err(|_| "permanent: the address to connect to is not one".to_string())?;
            builder = builder.resolver(move |_: &str| Ok(vec![address]));
        }
        if !text(&options, "proxy").is_empty() {
            // The address may hold a password: it is not part of the error.
            let proxy = ureq::Proxy::new(text(&options, "proxy"))
                .map_err(|_| "permanent: the proxy's address is not one".to_string())?;
            builder = builder.proxy(proxy);
        }
        Ok(Self(builder.build()))
    }

    /// The head of the answer as JSON, whatever its status, and the body. An upload has as many bytes as the request's
    /// Content-Length says.
    pub fn send(&self, request: &str, upload: Option<Upload>) -> Result<(String, Body), String> {
        let request: Value = serde_json::from_str(request).map_err(|error| error.to_string())?;
        let mut call = self.0.request(text(&request, "method"), text(&request, "url"));
        for header in request["headers"].as_array().into_iter().flatten() {
            call = call.set(header[0].as_str().unwrap_or(""), header[1].as_str().unwrap_or(""));
        }
        let sent = match upload {
            Some(upload) => call.send(upload),
            None => call.call(),
        };
        let answer = match sent {
            Ok(answer) => answer,
            Err(ureq::Error::Status(_, answer)) => answer,
            Err(ureq::Error::Transport(error)) => return Err(describe(&error)),
        };
        let mut headers = Vec::new();
        for name in answer.headers_names() {
            for value in answer.all(&name) {
                headers.push(json!([name.to_ascii_lowercase(), value]));
            }
        }
        let head = json!({"status": answer.status(), "headers": headers}).to_string();
        Ok((head, Body { reader: answer.into_reader(), broken: None }))
    }
}

fn describe(error: &ureq::Transport) -> String {
    use ureq::ErrorKind::{
        BadHeader, InvalidProxyUrl, InvalidUrl, ProxyUnauthorized, UnknownScheme,
    };
    // Its message quotes the header, which may be a secret.
    if error.kind() == BadHeader {
        return format!("permanent: {BadHeader}");
    }
    let mut why = error.message().unwrap_or("").to_string();
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        let inner_text = inner.to_string();
        if !why.contains(&inner_text) {
            why = if why.is_empty() { inner_text } else { format!("{why}: {inner_text}") };
        }
        source = inner.source();
    }
    let permanent =
        matches!(error.kind(), InvalidUrl | UnknownScheme | InvalidProxyUrl | ProxyUnauthorized)
            || why.contains("certificate");
    let kind = if permanent { "permanent" } else { "passing" };
    format!("{kind}: {}{}{why}", error.kind(), if why.is_empty() { "" } else { ": " })
}

impl Body {
    /// How many bytes were written to `buffer`; 0 at the end of the body.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<usize, String> {
        if let Some(broken) = self.broken.take() {
            return Err(broken);
        }
        let begun = Instant::now();
        let mut filled = 0;
        while filled < buffer.len() && (filled == 0 || begun.elapsed() < PATIENCE) {
            match self.reader.read(&mut buffer[filled..]) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    let broken = format!("passing: the connection broke: {error}");
                    if filled == 0 {
                        return Err(broken);
                    }
                    self.broken = Some(broken);
                    break;
                }
            }
        }
        Ok(filled)
    }
}
