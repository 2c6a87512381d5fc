// The only file that includes Boost: its headers take longer to compile than the rest of the
// folder.

#include "server/http/http_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>
#include <cctype>
#include <utility>

#include "server/http/percent.h"

namespace sft::server {
namespace {

namespace http = boost::beast::http;
using boost::beast::error_code;
using boost::beast::string_view;

HttpResponse Refusal(int status, std::string_view why) {
  return {status, HttpResponse().content_type, fmt::format("{}\n", why), {}};
}

// Splits a target into path and query. False: it is none that this server takes.
bool ReadTarget(std::string_view target, HttpRequest& request) {
  if (target.empty() || target.front() != '/') return false;  // a proxy's form, or "*"
  const bool plain =
      std::ranges::all_of(target, [](char c) { return c > 0x20 && c < 0x7f && c != '#'; });
  const size_t query = target.find('?');
  request.path = target.substr(0, query);
  if (query != target.npos) request.query = target.substr(query + 1);
  return plain && IsPlainPath(request.path);
}

bool IsNumber(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
}

// What stands before a chunk's bytes, and behind the last chunk.
enum class ChunkHead { kNone, kPart, kWhole };

// What bytes begin with. The library is given whole ones alone: it cannot be given the beginning of
// the last one twice.
ChunkHead ChunkHeadIn(std::string_view bytes) {
  if (bytes.starts_with("\r\n")) bytes.remove_prefix(2);  // of the chunk before
  if (bytes.empty() || bytes == "\r") return ChunkHead::kPart;
  if (std::isxdigit(static_cast<unsigned char>(bytes.front())) == 0) return ChunkHead::kNone;
  const size_t end = bytes.find('\n');
  if (end == bytes.npos) return ChunkHead::kPart;
  if (bytes[end - 1] != '\r') return ChunkHead::kNone;
  const std::string_view size = bytes.substr(0, bytes.find_first_not_of('0'));
  const bool last = size.size() == bytes.find_first_not_of("0123456789abcdefABCDEF");
  if (!last) return ChunkHead::kWhole;
  return bytes.find("\r\n\r\n", end - 1) == bytes.npos ? ChunkHead::kPart : ChunkHead::kWhole;
}

}  // namespace

class HttpParser::Parser final : public http::basic_parser<true> {
 public:
  Parser() {
    header_limit(kMaxHead);
    body_limit(boost::none);
  }

  HttpRequest request;
  int version = 11;
  bool bad_target = false, too_many = false;
  std::uint64_t left_of_chunk = 0;
  std::string* body = nullptr;

 private:
  void on_request_impl(http::verb, string_view method, string_view target, int protocol,
                       error_code& ec) override {
    ec = {};
    request.method.assign(method.data(), method.size());
    version = protocol;
    bad_target = !ReadTarget({target.data(), target.size()}, request);
  }
  void on_response_impl(int, string_view, int, error_code& ec) override { ec = {}; }
  void on_field_impl(http::field, string_view name, string_view value, error_code& ec) override {
    ec = {};
    if (is_header_done()) return;  // behind the last chunk: nobody asked for it
    too_many = request.fields.size() >= kMaxFields;
    if (too_many) {
      ec = http::make_error_code(http::error::header_limit);
      return;
    }
    std::string lower(name.data(), name.size());
    std::ranges::transform(lower, lower.begin(),
                           [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    request.fields.emplace_back(std::move(lower), std::string(value.data(), value.size()));
  }
  void on_header_impl(error_code& ec) override { ec = {}; }
  void on_body_init_impl(boost::optional<std::uint64_t> const&, error_code& ec) override {
    ec = {};
  }
  std::size_t on_body_impl(string_view piece, error_code& ec) override {
    ec = {};
    body->append(piece.data(), piece.size());
    return piece.size();
  }
  void on_chunk_header_impl(std::uint64_t size, string_view extensions, error_code& ec) override {
    ec = {};
    left_of_chunk = size;
    if (extensions.size() > kMaxExtensions) {
      ec = http::make_error_code(http::error::bad_chunk_extension);
    }
  }
  std::size_t on_chunk_body_impl(std::uint64_t, string_view piece, error_code& ec) override {
    left_of_chunk -= piece.size();
    return on_body_impl(piece, ec);
  }
  void on_finish_impl(error_code& ec) override { ec = {}; }
};

HttpParser::HttpParser() : parser_(std::make_unique<Parser>()) {}
HttpParser::~HttpParser() = default;

std::variant<size_t, HttpResponse> HttpParser::FindHead(std::string_view bytes, size_t& scanned) {
  for (size_t i = scanned; i < bytes.size(); scanned = ++i) {
    if (i >= kMaxHead) return Refusal(431, "the request's head is too large");
    const char c = bytes[i];
    if (c == '\0') return Refusal(400, "the request's head holds a NUL");
    if (c != '\n') {
      if (i > 0 && bytes[i - 1] == '\r') return Refusal(400, "a carriage return ends no line");
      continue;
    }
    if (i == 0 || bytes[i - 1] != '\r') return Refusal(400, "a line ends without carriage return");
    if (i == 1) return Refusal(400, "a request begins with its method");
    if (i >= 3 && bytes[i - 2] == '\n') return scanned = i + 1;
    // A line that goes on in the next one (RFC 9112, 5.2) is read differently by many.
    if (i + 1 < bytes.size() && (bytes[i + 1] == ' ' || bytes[i + 1] == '\t')) {
      return Refusal(400, "a field is folded over two lines");
    }
    if (i + 1 == bytes.size()) break;  // looked at again with what follows
  }
  return size_t{0};
}

std::variant<HttpRequest, HttpResponse> HttpParser::Head(std::string_view head) {
  Parser& parser = *parser_;
  error_code ec;
  parser.put(boost::asio::const_buffer(head.data(), head.size()), ec);
  if (parser.too_many || ec == http::make_error_code(http::error::header_limit)) {
    return Refusal(431, fmt::format("a request's head has at most {} bytes and {} fields", kMaxHead,
                                    kMaxFields));
  }
  if (ec == http::make_error_code(http::error::bad_version)) {
    return Refusal(505, "HTTP/1.1 and HTTP/1.0 are served");
  }
  if (ec || !parser.is_header_done()) {
    return Refusal(400, fmt::format("this is not an HTTP/1.1 request: {}", ec.message()));
  }
  if (parser.version != 11 && parser.version != 10) {
    return Refusal(505, "HTTP/1.1 and HTTP/1.0 are served");
  }
  HttpRequest& request = parser.request;
  if (parser.bad_target) {
    return Refusal(400,
                   "a path begins with /, holds no \"..\" and no control character, and codes "
                   "others as %XX");
  }
  const auto count = [&](std::string_view name) {
    return std::ranges::count(request.fields, name, &std::pair<std::string, std::string>::first);
  };
  const auto lengths = count("content-length"), codings = count("transfer-encoding");
  if (lengths + codings > 1) {
    return Refusal(400, "the length of the body is told twice");
  }
  request.is_1_0 = parser.version == 10;
  if (codings > 0 && (request.is_1_0 || !parser.chunked())) {
    return Refusal(400, "a body comes in chunks or with its Content-Length");
  }
  if (count("host") > 1 || (count("host") == 0 && !request.is_1_0)) {
    return Refusal(400, "a request has one Host");
  }
  request.chunked = codings > 0;
  if (lengths > 0) {
    if (!IsNumber(request.Field("content-length")) || !parser.content_length()) {
      return Refusal(400, "the Content-Length is no number");
    }
    request.length = *parser.content_length();
  }
  request.keeps = !request.is_1_0 && parser.keep_alive();
  parser.eager(true);
  return request;
}

absl::StatusOr<size_t> HttpParser::Body(std::string_view bytes, std::string& body) {
  Parser& parser = *parser_;
  parser.body = &body;
  size_t used = 0;
  while (!parser.is_done() && used < bytes.size()) {
    const std::string_view rest = bytes.substr(used);
    if (parser.chunked() && parser.left_of_chunk == 0) {
      const ChunkHead head = ChunkHeadIn(rest);
      if (head == ChunkHead::kNone) return InvalidArgument("the body cannot be read: bad chunk");
      if (head == ChunkHead::kPart) break;
    }
    error_code ec;
    const size_t took = parser.put(boost::asio::const_buffer(rest.data(), rest.size()), ec);
    used += took;
    if (ec == http::make_error_code(http::error::need_more)) ec = {};
    if (ec) return InvalidArgument(fmt::format("the body cannot be read: {}", ec.message()));
    if (took == 0) break;
  }
  return used;
}

bool HttpParser::done() const { return parser_->is_done(); }

}  // namespace sft::server
